"""`headrace verify` says for each check what to change, and goes on with the next one."""

import pytest

from services.launcher.ports import free_port
from services.launcher.verify import verify_command

_TOML = """
[run]
directory = "{folder}/runs"
[model]
path = "{folder}/nothing"
[data]
source = "{folder}/rows.jsonl"
[reward]
scorer = "numerc"
[queue]
redis_url = "redis://:hunter2@127.0.0.1:{port}/0"
"""


def test_every_check_that_fails_has_a_line(tmp_path, capsys):
    path = tmp_path / "bad.toml"
    path.write_text(_TOML.format(folder=tmp_path, port=free_port()))
    assert verify_command(path, []) == 1
    out = capsys.readouterr().out
    assert "ok  configuration: " in out
    assert "FAILED  redis: " in out
    assert "FAILED  data: " in out
    assert "FAILED  scorer settings: " in out
    assert "did you mean 'numeric'?" in out
    assert "FAILED  model: " in out
    assert "--  scorer: left out" in out
    assert "--  generation: left out" in out
    assert "hunter2" not in out
    assert not (tmp_path / "runs").exists()


_SCORERS = """
import time

def raises(*arguments, **named):
    raise ValueError("boom")

def nan(*arguments, **named):
    return float("nan")

def hangs(*arguments, **named):
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("scorer", "sentence"),
    [
        ("verified_scorers:raises", "FAILED  scorer: the scorer raised ValueError: boom"),
        ("verified_scorers:nan", "FAILED  scorer: "),
        ("verified_scorers:hangs", "FAILED  scorer: "),
        ("verified_nowhere:score", "FAILED  scorer: the reward service ended with exit status 2"),
    ],
)
def test_a_scorer_that_fails_ends_in_a_sentence_and_the_count_comes(tmp_path, monkeypatch, capsys, scorer, sentence):
    (tmp_path / "verified_scorers.py").write_text(_SCORERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
    path = tmp_path / "run.toml"
    path.write_text(_TOML.format(folder=tmp_path, port=free_port()).replace("numerc", f"python:{scorer}"))
    flags = ["--validation.size", "0", "--reward.timeout_seconds", "1"]
    assert verify_command(path, flags) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.strip().startswith(sentence) for line in lines)
    assert "--  generation: left out" in "\n".join(lines)
    assert lines[-1].endswith(" checks failed")
