"""The command line: words, flags, help and exit statuses."""

import subprocess
import sys

import pytest

from services.launcher.__main__ import main, split_flags

_TOML = '[model]\npath = "some-model"\n[data]\nsource = "rows.jsonl"\n'


@pytest.mark.parametrize(
    ("words", "rest", "flags"),
    [
        (["run", "a.toml"], ["run", "a.toml"], []),
        (["run", "--a.b", "3", "a.toml"], ["run", "a.toml"], ["--a.b=3"]),
        (["run", "a.toml", "--a.b=3", "--quiet"], ["run", "a.toml", "--quiet"], ["--a.b=3"]),
        (["run", "a.toml", "--run.resume"], ["run", "a.toml"], ["--run.resume"]),
        (["run", "a.toml", "--run.resume", "--a.b", "-1"], ["run", "a.toml"], ["--run.resume", "--a.b=-1"]),
        (["run", "a.toml", "--a.b", "c=d"], ["run", "a.toml"], ["--a.b=c=d"]),
    ],
)
def test_flags_are_parted_from_other_words(words, rest, flags):
    assert split_flags(words) == (rest, flags)


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from services.launcher.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = ('torch', 'transformers', 'grpc', 'numpy', 'redis', 'rich', 'pydantic')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "run, verify" not in done.stderr


def test_a_wrong_configuration_is_one_sentence_and_status_2(tmp_path, capsys):
    path = tmp_path / "bad.toml"
    path.write_text(_TOML + "[trainer]\ntotal_step = 3\n")
    assert main(["run", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "did you mean trainer.total_steps?" in error


def test_an_unknown_scorer_is_refused_before_anything_starts(tmp_path, capsys):
    path = tmp_path / "bad.toml"
    path.write_text(_TOML)
    assert main(["run", str(path), "--reward.scorer", "numerc", "--run.directory", str(tmp_path / "runs")]) == 2
    assert "did you mean 'numeric'?" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_prints_what_a_run_would_use(tmp_path, capsys):
    path = tmp_path / "good.toml"
    path.write_text(_TOML)
    assert main(["run", str(path), "--dry-run", "--trainer.total_steps", "7"]) == 0
    said = capsys.readouterr().out
    assert "total_steps = 7" in said
    assert 'name = "good-1"' in said


def test_status_takes_no_configuration_flags(tmp_path, capsys):
    assert main(["status", str(tmp_path), "--trainer.total_steps", "7"]) == 2
    assert "takes no --trainer.total_steps" in capsys.readouterr().err


def test_status_of_another_folder_is_refused(tmp_path, capsys):
    assert main(["status", str(tmp_path)]) == 2
    assert "is no run directory" in capsys.readouterr().err
