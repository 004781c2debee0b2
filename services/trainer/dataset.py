"""Rows of the dataset, and the order in which they become tasks.

Owns where rows come from (`reasoning_gym:<dataset>` or a .jsonl file), that a bad row ends in one sentence with file
and line, and that sequence number -> row is a function of the seed alone: each epoch visits the rows in an order drawn
from (seed, epoch), so the cursor of a run is one number. Knows nothing of models or queues.

Example:
    data = load_data(config, folder=Path("examples"))
    order = RowOrder(len(data.train), seed=1, shuffle=True)
    row = data.train[order.row(sequence)]
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.common.errors import ConfigError
from services.common.types import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from services.common.config import RunConfig
    from services.common.config.learning import DataSection

GENERATED_PREFIX = "reasoning_gym:"
"""Begins a source whose rows are generated."""
VALIDATION_SEED_OFFSET = 1_000_003
"""Added to the seed of a generated source for its held-out rows."""

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRow:
    """One row of the dataset, ready to become a task."""

    messages: tuple[Message, ...]
    """The prompt, system prompt included."""
    answer: str
    """The reference answer; empty when the source has none."""
    metadata_json: str
    """Everything else the row holds, as a JSON object, for the scorer."""
    origin: str
    """Where it came from, for messages: `train.jsonl line 3`."""

    @property
    def question(self) -> str:
        """The last message's text: what tells two rows apart."""
        return self.messages[-1].content


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The rows of a run."""

    train: tuple[DataRow, ...]
    """Rows that are trained on, at least one."""
    validation: tuple[DataRow, ...]
    """Held-out rows; empty when validation is off."""
    num_excluded: int
    """Training rows left out because their question is held out."""


class RowOrder:
    """Which row a sequence number means: an order per epoch, drawn from the seed."""

    def __init__(self, num_rows: int, *, seed: int, shuffle: bool) -> None:
        """Fix the order.

        Args:
            num_rows: rows of the dataset, >= 1.
            seed: the run's seed.
            shuffle: whether each epoch has an order of its own; else rows come as they are.
        """
        self._num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._epoch_order = functools.lru_cache(maxsize=2)(self._draw)

    def row(self, sequence: int) -> int:
        """Index of the row that `sequence` stands for."""
        epoch, place = divmod(sequence, self._num_rows)
        return self._epoch_order(epoch)[place] if self._shuffle else place

    def _draw(self, epoch: int) -> list[int]:
        """Order of one epoch: by a hash, so that it is the same under every library version."""

        def key(index: int) -> bytes:
            return hashlib.blake2b(f"{self._seed}/{epoch}/{index}".encode(), digest_size=16).digest()

        return sorted(range(self._num_rows), key=key)


def load_data(config: RunConfig, *, folder: Path) -> RunData:
    """Load training and held-out rows.

    Held-out rows of the same file are taken out of the training rows. A generated source draws them with another seed;
    with `validation.disjoint` training rows whose question is held out are left out, without it a small space of
    questions overlaps.

    Args:
        config: the run's configuration.
        folder: where relative paths start, the config file's folder.

    Raises:
        ConfigError: the source or a row is wrong; names file and line.
    """
    data, validation = config.data, config.validation
    seed = config.run.seed + data.seed_offset
    rows = load_rows(data, source=data.source, size=data.size, seed=seed, folder=folder)
    if validation.size == 0:
        return RunData(train=rows, validation=(), num_excluded=0)
    own_source = validation.source or data.source
    if not validation.source and not data.source.startswith(GENERATED_PREFIX):
        return _split(rows, size=validation.size, seed=seed, source=data.source)
    held_out = load_rows(
        data, source=own_source, size=validation.size, seed=seed + VALIDATION_SEED_OFFSET, folder=folder
    )[: validation.size]
    if not validation.disjoint:
        return RunData(train=rows, validation=held_out, num_excluded=0)
    questions = {row.question for row in held_out}
    kept = tuple(row for row in rows if row.question not in questions)
    if not kept:
        raise ConfigError(
            f"validation holds out {len(questions)} questions and {data.source} has no other; "
            "lower validation.size or set validation.disjoint = false"
        )
    return RunData(train=kept, validation=held_out, num_excluded=len(rows) - len(kept))


def load_rows(data: DataSection, *, source: str, size: int, seed: int, folder: Path) -> tuple[DataRow, ...]:
    """Load the rows of one source.

    Args:
        data: fields, arguments and system prompt.
        source: `reasoning_gym:<dataset>` or a .jsonl path.
        size: rows to generate; a file has as many as it has.
        seed: seed of a generated source.
        folder: where a relative path starts; the working folder is tried too.

    Raises:
        ConfigError: the source or a row is wrong.
    """
    if source.startswith(GENERATED_PREFIX):
        return _generate(data, name=source.removeprefix(GENERATED_PREFIX), size=size, seed=seed)
    if not source.endswith(".jsonl"):
        raise ConfigError(
            f"data source {source!r} is unknown; write {GENERATED_PREFIX}<dataset> or the path of a .jsonl file"
        )
    return _read_jsonl(data, _find(source, folder=folder))


def _split(rows: tuple[DataRow, ...], *, size: int, seed: int, source: str) -> RunData:
    """Hold out `size` rows of a file, chosen by the seed."""
    if size >= len(rows):
        raise ConfigError(
            f"validation.size is {size} and {source} has {len(rows)} rows; "
            "nothing would be left to train on: lower it or name a validation.source"
        )
    order = RowOrder(len(rows), seed=seed + VALIDATION_SEED_OFFSET, shuffle=True)
    chosen = {order.row(place) for place in range(size)}
    held_out = tuple(row for index, row in enumerate(rows) if index in chosen)
    questions = {row.question for row in held_out}
    rest = [row for index, row in enumerate(rows) if index not in chosen]
    kept = tuple(row for row in rest if row.question not in questions)
    if not kept:
        raise ConfigError(f"every row of {source} repeats a held-out question; name a validation.source")
    return RunData(train=kept, validation=held_out, num_excluded=len(rest) - len(kept))


def _find(source: str, *, folder: Path) -> Path:
    """Find a file beside the config, else in the working folder."""
    for candidate in (folder / source, Path(source)):
        if candidate.is_file():
            return candidate
    path = Path(source)
    if path.is_absolute():
        raise ConfigError(f"data file {path.name!r} does not exist in {path.parent}")
    raise ConfigError(f"data file {source!r} does not exist in {folder} nor in the working folder")


def _generate(data: DataSection, *, name: str, size: int, seed: int) -> tuple[DataRow, ...]:
    """Make the rows of a reasoning_gym dataset."""
    try:
        # Loading the library takes most of a second, and a file needs none of it.
        import reasoning_gym  # noqa: PLC0415
        from reasoning_gym.factory import DATASETS  # noqa: PLC0415
    except ImportError:
        raise ConfigError('data.source needs reasoning_gym; pip install "headrace[trainer]"') from None
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "see reasoning_gym's list of datasets"
        raise ConfigError(f"reasoning_gym has no dataset {name!r}; {hint}")
    try:
        dataset = reasoning_gym.create_dataset(name, size=size, seed=seed, **data.args)
        entries = [dataset[index] for index in range(size)]
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"reasoning_gym:{name} refuses data.args {data.args}: {error}") from None
    return tuple(
        DataRow(
            messages=_with_system(data.system_prompt, (Message(role="user", content=entry["question"]),)),
            answer="" if entry["answer"] is None else str(entry["answer"]),
            # Scorers rebuild the entry from this; values that JSON does not know become texts.
            metadata_json=json.dumps(entry, default=str),
            origin=f"reasoning_gym:{name} row {index}",
        )
        for index, entry in enumerate(entries)
    )


def _read_jsonl(data: DataSection, path: Path) -> tuple[DataRow, ...]:
    """Read a file of one JSON object per line; blank lines are skipped."""
    rows = tuple(_parse_line(data, line, where=f"{path} line {number}") for number, line in _lines(path))
    if not rows:
        raise ConfigError(f"{path}: holds no rows; write one JSON object per line")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and text of every line that is not blank."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise ConfigError(f"{path} line {number}: is not UTF-8 ({error.reason})") from None
            if text:
                yield number, text


def _parse_line(data: DataSection, text: str, *, where: str) -> DataRow:
    """Turn one line into a row."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: is not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: holds a JSON {type(values).__name__}; write one object per line")
    messages = _messages(values, field=data.prompt_field, where=where)
    answer = _answer(values, field=data.answer_field, where=where)
    rest = {name: value for name, value in values.items() if name not in {data.prompt_field, data.answer_field}}
    return DataRow(
        messages=_with_system(data.system_prompt, messages), answer=answer, metadata_json=json.dumps(rest), origin=where
    )


def _messages(values: Mapping[str, Any], *, field: str, where: str) -> tuple[Message, ...]:
    """Read the prompt: a text, or a list of messages."""
    if field not in values:
        raise ConfigError(f"{where}: has no field {field!r} (data.prompt_field); it has {_names(values)}")
    prompt = values[field]
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not all(isinstance(item, dict) for item in prompt):
        raise ConfigError(f"{where}: {field!r} must be a text or a list of messages with role and content")
    if not prompt or not str(prompt[-1].get("content") or "").strip():
        raise ConfigError(f"{where}: {field!r} is empty; every row needs a prompt")
    messages = []
    for item in prompt:
        role, content = item.get("role"), item.get("content")
        if role not in _ROLES or not isinstance(content, str):
            raise ConfigError(
                f"{where}: a message in {field!r} has role {role!r} and content of type {type(content).__name__}; "
                f"roles are {', '.join(_ROLES)} and content is a text"
            )
        messages.append(Message(role=role, content=content))
    return tuple(messages)


def _answer(values: Mapping[str, Any], *, field: str, where: str) -> str:
    """Read the reference answer; an empty `data.answer_field` says that rows have none."""
    if not field:
        return ""
    if values.get(field) is None:
        raise ConfigError(f"{where}: has no field {field!r} (data.answer_field); it has {_names(values)}")
    answer = values[field]
    return answer if isinstance(answer, str) else json.dumps(answer)


def _with_system(system_prompt: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Put the system prompt first, when there is one."""
    return (Message(role="system", content=system_prompt), *messages) if system_prompt else messages


def _names(values: Mapping[str, Any]) -> str:
    """List a row's fields for a message."""
    return ", ".join(sorted(values)) or "no fields"


def questions_and_answers(rows: Sequence[DataRow]) -> list[tuple[str, str]]:
    """Pairs of question and answer, for a supervised warm start."""
    return [(row.question, row.answer) for row in rows]
