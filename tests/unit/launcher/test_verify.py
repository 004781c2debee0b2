"""`headrace verify` says for each check what to change, and goes on with the next one."""

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
    assert verify_command(path, []) == 2
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
