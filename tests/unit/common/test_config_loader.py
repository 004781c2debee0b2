"""Loading a configuration: files, flags, variables, and one sentence for every mistake."""

import json
import subprocess
import sys
import tomllib

import pytest
import yaml

from services.common.config import dump_config, load_config
from services.common.config.loader import parse_flags
from services.common.errors import ConfigError

_MINIMAL = {"model": {"path": "some-model"}, "data": {"source": "rows.jsonl"}}
_TOML = '[model]\npath = "some-model"\n[data]\nsource = "rows.jsonl"\n'


def _write(tmp_path, text=_TOML, name="run.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def _refusal(path, flags=()):
    with pytest.raises(ConfigError) as caught:
        load_config(path, flags)
    message = caught.value.message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.toml", _TOML),
        ("run.yaml", yaml.safe_dump(_MINIMAL)),
        ("run.yml", yaml.safe_dump(_MINIMAL)),
        ("run.json", json.dumps(_MINIMAL)),
    ],
)
def test_toml_yaml_and_json_say_the_same(tmp_path, name, text):
    config = load_config(_write(tmp_path, text, name))
    assert config.model.path == "some-model"
    assert config == load_config(_write(tmp_path))


def test_defaults_lose_to_the_file_and_the_file_loses_to_flags(tmp_path):
    path = _write(tmp_path, _TOML + "[trainer]\ntotal_steps = 7\n")
    assert load_config(path).trainer.total_steps == 7
    assert load_config(path).trainer.groups_per_step == 16
    assert load_config(path, ["--trainer.total_steps", "9"]).trainer.total_steps == 9


@pytest.mark.parametrize(
    ("words", "keys", "value"),
    [
        (["--trainer.total_steps", "20"], ["trainer", "total_steps"], 20),
        (["--trainer.total-steps=20"], ["trainer", "total_steps"], 20),
        (["--trainer.learning_rate", "1e-3"], ["trainer", "learning_rate"], 1e-3),
        (["--run.resume", "true"], ["run", "resume"], True),
        (["--run.resume"], ["run", "resume"], True),
        (["--run.name", "plain-text"], ["run", "name"], "plain-text"),
        (["--run.name", '"7"'], ["run", "name"], "7"),
        (["--rollout.stop", '["a", "b"]'], ["rollout", "stop"], ["a", "b"]),
        (["--reward.regex", "a=b"], ["reward", "regex"], "a=b"),
        (["--model.warm_start.max_steps", "0"], ["model", "warm_start", "max_steps"], 0),
    ],
)
def test_flags_are_typed_as_toml_would_type_them(words, keys, value):
    assert parse_flags(words) == [(keys, value)]


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["trainer.total_steps", "3"], "is not a flag"),
        (["--steps", "3"], "is not a flag"),
        (["--trainer.total_steps"], "--trainer.total_steps has no value; write --trainer.total_steps VALUE"),
        (["--trainer.total_steps", "--run.resume"], "--trainer.total_steps has no value"),
        (["--model.path"], "--model.path has no value"),
        (["--model.path.deeper", "3"], "which has no keys below it"),
    ],
)
def test_a_wrong_flag_is_named(tmp_path, flags, part):
    assert part in _refusal(_write(tmp_path), flags)


def test_a_number_as_a_name_stays_the_users_mistake_with_a_sentence(tmp_path):
    assert "run.name is 7" in _refusal(_write(tmp_path), ["--run.name", "7"])


def test_variables_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("HR_TEST_MODEL", "from-env")
    path = _write(tmp_path, _TOML.replace("some-model", "${HR_TEST_MODEL}/x"))
    assert load_config(path).model.path == "from-env/x"


def test_a_missing_variable_is_named(tmp_path):
    path = _write(tmp_path, _TOML.replace("some-model", "${HR_TEST_NOT_SET}"))
    assert "the environment has no HR_TEST_NOT_SET" in _refusal(path)


def test_a_dotenv_file_beside_the_config_is_read_and_the_environment_wins(tmp_path, monkeypatch):
    # Set and removed first, so that what load_dotenv puts into the environment is taken out again.
    for name in ("HR_TEST_A", "HR_TEST_B"):
        monkeypatch.setenv(name, "outside")
    monkeypatch.delenv("HR_TEST_A")
    (tmp_path / ".env").write_text("HR_TEST_A=inside\nHR_TEST_B=inside\n")
    path = _write(tmp_path, _TOML.replace("some-model", "${HR_TEST_A}-${HR_TEST_B}"))
    assert load_config(path).model.path == "inside-outside"


@pytest.mark.parametrize(
    ("extra", "part"),
    [
        ("[trainer]\ntotal_step = 3\n", "did you mean trainer.total_steps?"),
        ("[trainr]\ntotal_steps = 3\n", "did you mean trainer"),
        ("[algorithm]\ntotal_steps = 3\n", "did you mean trainer.total_steps?"),
        ("[zzzqqq]\nxxyyzz = 3\n", "known sections are run, model, data"),
        ("[async]\nmax_stalenes = 3\n", "did you mean async.max_staleness?"),
        ("[model.warm_start]\nsteps = 3\n", "did you mean model.warm_start.max_steps?"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(tmp_path, extra, part):
    text = _TOML if "[model.warm_start]" not in extra else _TOML.replace("[data]", extra + "[data]")
    message = _refusal(_write(tmp_path, text if text != _TOML else _TOML + extra))
    assert part in message
    assert "is not a known key" in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[model]\npath = 'x'\n", "data is missing"),
        ("[model]\npath = 'x'\n[data]\n", "data.source is missing"),
        (_TOML + "[trainer]\ntotal_steps = 0\n", "trainer.total_steps is 0"),
        (_TOML + "[trainer]\ntotal_steps = 'many'\n", "trainer.total_steps is 'many'"),
        (_TOML + "[async]\nmode = 'fast'\n", "async.mode is 'fast'"),
        (_TOML + "[trainer\n", "not valid TOML"),
        (_TOML.replace("path", "build = 'tiny_qwen3'\npath"), "set exactly one of them"),
        (_TOML + "[rollout]\ngroup_size = 1\n", "a group never has more members than its size"),
        (_TOML + "[run]\nname = 'a b'\n", "run.name is 'a b'"),
    ],
)
def test_a_mistake_ends_in_one_sentence_with_key_and_value(tmp_path, text, part):
    message = _refusal(_write(tmp_path, text))
    assert part in message
    assert "run.toml" in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert "no such file" in _refusal(tmp_path / "nothing.toml")
    assert "cannot be read" in _refusal(tmp_path)
    assert "known are .toml, .yaml, .yml and .json" in _refusal(_write(tmp_path, "", "run.ini"))
    assert "holds list at the top" in _refusal(_write(tmp_path, "[1]", "run.json"))


def test_a_wrong_redis_address_does_not_repeat_its_password(tmp_path):
    message = _refusal(_write(tmp_path, _TOML + "[queue]\nredis_url = 'http://user:hunter2@host'\n"))
    assert "starts with 'http'" in message
    assert "hunter2" not in message


def test_what_is_dumped_loads_to_the_same_and_holds_no_secret(tmp_path):
    extra = "[queue]\nredis_url = 'redis://:hunter2@localhost:1'\n[rollout]\nstop = ['a']\n[async]\nmode = 'sync'\n"
    config = load_config(_write(tmp_path, _TOML + extra))
    text = dump_config(config)
    assert "hunter2" not in text
    assert "hunter2" not in repr(config)
    again = load_config(_write(tmp_path, text, "again.toml"))
    assert dump_config(again) == text
    assert tomllib.loads(text)["async"]["max_staleness"] == 0


def test_loading_imports_nothing_heavy(tmp_path):
    path = _write(tmp_path)
    code = (
        "import sys; from pathlib import Path; from services.common.config import load_config; "
        f"load_config(Path({str(path)!r})); "
        "print([name for name in ('torch', 'transformers', 'grpc', 'numpy', 'redis', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
