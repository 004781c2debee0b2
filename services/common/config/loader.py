"""Reads a configuration: defaults < file < `--section.key value`. Every mistake becomes one sentence.

Files are TOML, YAML or JSON by their ending. `${NAME}` in a text is replaced from the environment, after a `.env`
beside the file (or in the working folder) was read; what the environment already holds wins.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import tomli_w
import yaml
from dotenv import load_dotenv
from pydantic import BaseModel, SecretStr, ValidationError

from services.common.config.schema import RunConfig
from services.common.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load_config(path: Path, flags: Sequence[str] = ()) -> RunConfig:
    """Read a file, apply flags, and check everything.

    Args:
        path: a .toml, .yaml, .yml or .json file.
        flags: `--section.key value` pairs or `--section.key=value` words, as they came on the command line.

    Raises:
        ConfigError: with one sentence that names the file, the key, the value and the bound.
    """
    for folder in (path.resolve().parent, Path.cwd()):
        load_dotenv(folder / ".env", override=False)
    values = _read(path)
    for keys, value in parse_flags(flags):
        _set(values, keys, value)
    expanded = _expand(values, path)
    try:
        return RunConfig.model_validate(expanded)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_sentence(error)}") from None


def parse_flags(flags: Sequence[str]) -> list[tuple[list[str], Any]]:
    """Turn `--section.key value` words into key paths and values, typed as TOML would type them.

    Raises:
        ConfigError: a word is no flag, or one has no value; only a boolean key may leave it out, and is then true.
    """
    pairs: list[tuple[list[str], Any]] = []
    words = list(flags)
    while words:
        word = words.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in name:
            raise ConfigError(
                f"{word!r} is not a flag; write --section.key value, for example --trainer.total_steps 20"
            )
        keys = name.replace("-", "_").split(".")
        if not equals:
            if words and not words[0].startswith("--"):
                text = words.pop(0)
            elif _is_boolean(keys):
                text = "true"
            else:
                raise ConfigError(f"--{name} has no value; write --{name} VALUE")
        pairs.append((keys, _typed(text)))
    return pairs


def dump_config(config: RunConfig) -> str:
    """Return the resolved configuration as TOML, without secrets."""
    text: str = tomli_w.dumps(_plain(config))
    return text


def _plain(section: BaseModel) -> dict[str, Any]:
    """Turn a section into TOML values; secrets are left out, they come by environment."""
    out: dict[str, Any] = {}
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, SecretStr):
            continue
        out[info.alias or name] = _plain(value) if isinstance(value, BaseModel) else value
    return out


def _read(path: Path) -> dict[str, Any]:
    """Parse the file by its ending."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a .toml, .yaml or .json config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    try:
        match path.suffix.lower():
            case ".toml":
                values: object = tomllib.loads(text)
            case ".yaml" | ".yml":
                values = yaml.safe_load(text)
            case ".json":
                values = json.loads(text)
            case suffix:
                raise ConfigError(f"{path}: ends in {suffix!r}; known are .toml, .yaml, .yml and .json")
    except (tomllib.TOMLDecodeError, yaml.YAMLError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: not valid {path.suffix[1:].upper()}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise ConfigError(f"{path}: holds {kind} at the top; sections like [model] and [data] belong there")
    return values


def _set(values: dict[str, Any], keys: list[str], value: object) -> None:
    """Put one flag's value at its place."""
    node = values
    for key in keys[:-1]:
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--{'.'.join(keys)}: {key} holds {child!r}, which has no keys below it")
        node = child
    node[keys[-1]] = value


def _typed(text: str) -> Any:  # noqa: ANN401 - a config value can be any TOML type
    """Read a flag's text as a TOML value, or keep it as a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _expand(value: Any, path: Path) -> Any:  # noqa: ANN401 - walks arbitrary config values
    """Replace `${NAME}` everywhere."""
    if isinstance(value, dict):
        return {key: _expand(item, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, path) for item in value]
    if not isinstance(value, str):
        return value

    def lookup(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise ConfigError(
                f"{path}: ${{{name}}} is used and the environment has no {name}; set it or put it into .env"
            )
        return os.environ[name]

    return _VARIABLE.sub(lookup, value)


def _sentence(error: ValidationError) -> str:
    """Turn the first of pydantic's complaints into one sentence."""
    first = error.errors(include_url=False, include_context=False)[0]
    keys = [str(key) for key in first["loc"]]
    name = ".".join(keys)
    if first["type"] == "extra_forbidden":
        known = _known_keys()
        # A key of that very name in another section is what was meant more often than one that is spelt alike.
        namesakes = [key for key in known if key.rsplit(".", 1)[-1] == keys[-1]]
        near = difflib.get_close_matches(name, namesakes or known, n=1, cutoff=0.0 if namesakes else 0.5)
        hint = f"; did you mean {near[0]}?" if near else f"; known sections are {', '.join(_sections())}"
        return f"{name} is not a known key{hint}"
    if first["type"] == "missing":
        return f"{name} is missing; it has no default"
    message = first["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(first["input"], BaseModel | dict) else f" is {first['input']!r}"
    if "url" in keys[-1:] or (keys and keys[-1].endswith("_url")):
        shown = ""
    return f"{name}{shown}: {message}" if name else message


def _known_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """List every key of the schema as `section.key`."""
    keys: list[str] = []
    for name, info in model.model_fields.items():
        label = prefix + (info.alias or name)
        section = _section_type(info.annotation)
        keys.append(label)
        if section is not None:
            keys.extend(_known_keys(section, f"{label}."))
    return keys


def _is_boolean(keys: Sequence[str]) -> bool:
    """Whether the key at this path of the schema is true or false."""
    annotation: object = RunConfig
    for key in keys:
        section = _section_type(annotation)
        fields = {} if section is None else section.model_fields
        annotation = next((info.annotation for name, info in fields.items() if key in (name, info.alias)), None)
    return annotation is bool


def _section_type(annotation: object) -> type[BaseModel] | None:
    """Return the section class of an annotation, if it is one."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _sections() -> Mapping[str, None]:
    """Names of the top-level sections, in order."""
    return dict.fromkeys(info.alias or name for name, info in RunConfig.model_fields.items())
