"""Every kind of bad input ends in one clear sentence, exit status 2, and no run directory."""

import json
import shutil
import socket

import pytest

from services.launcher.__main__ import main
from tests.e2e import system

pytestmark = pytest.mark.e2e

_GOOD = {"prompt": "1 + 1 =", "answer": "2"}


@pytest.fixture
def refused(runs, tmp_path, capsys):
    """Run with something wrong and return the sentence; the command runs in this process, what it starts does not."""

    def run(*flags, data=None):
        path = None
        if data is not None:
            path = tmp_path / "rows.jsonl"
            path.write_text("".join(f"{line}\n" for line in data))
        config = system.write_config(tmp_path, directory=runs, data=path)
        status = main(["run", str(config), "--run.name", "bad", *flags])
        out, err = capsys.readouterr()
        assert status == 2, out + err
        sentences = err.splitlines()
        assert len(sentences) == 1, err
        assert not (runs / "bad").exists()
        return sentences[0]

    return run


def test_an_empty_prompt_is_named_with_file_and_line(refused):
    rows = [json.dumps(_GOOD), json.dumps({**_GOOD, "prompt": " "})]
    sentence = refused(data=rows)
    assert "rows.jsonl line 2" in sentence
    assert "prompt" in sentence
    assert "empty" in sentence


def test_a_missing_answer_is_named_with_its_field(refused):
    sentence = refused(data=[json.dumps({"prompt": "1 + 1 ="})])
    assert "rows.jsonl line 1" in sentence
    assert "'answer'" in sentence


def test_a_line_that_is_not_json_is_named(refused):
    sentence = refused(data=[json.dumps(_GOOD), json.dumps(_GOOD), "{oops"])
    assert "rows.jsonl line 3: is not JSON" in sentence


def test_a_prompt_longer_than_the_context_is_named(refused):
    sentence = refused(data=[json.dumps({**_GOOD, "prompt": "1 + " * 80 + "1 ="})])
    assert "rows.jsonl line 1" in sentence
    assert "context" in sentence
    assert "64" in sentence


def test_an_unknown_scorer_names_the_nearest(refused):
    assert "did you mean 'numeric'?" in refused("--reward.scorer", "numerc")


def test_an_unreachable_redis_is_named_without_its_password(refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    sentence = refused("--queue.redis_url", f"redis://:hunter2@127.0.0.1:{port}/0")
    assert f"127.0.0.1:{port}" in sentence
    assert "cannot be reached" in sentence
    assert "hunter2" not in sentence


def test_a_port_in_use_is_named(refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        sentence = refused("--queue.address", address)
    assert address in sentence
    assert "in use" in sentence


def test_a_model_folder_without_tokenizer_is_named(refused, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    sentence = refused("--model.build", "", "--model.path", str(folder))
    assert str(folder) in sentence
    assert "no tokenizer" in sentence
    shutil.rmtree(folder)


def test_an_unknown_key_names_the_nearest(refused):
    assert "did you mean trainer.total_steps?" in refused("--trainer.total_step", "3")


def test_an_existing_run_is_refused_and_left_as_it_is(runs, tmp_path):
    folder = runs / "old"
    folder.mkdir()
    (folder / "kept").write_text("yes")
    config = system.write_config(tmp_path, directory=runs)
    done = system.run("run", str(config), "--run.name", "old", timeout=50)
    assert done.returncode == 2
    assert "--run.resume true" in done.stderr
    assert (folder / "kept").read_text() == "yes"


def test_a_scorer_that_cannot_be_loaded_is_named_by_its_service(refused):
    assert "module json has no function 'nothing'" in refused("--reward.scorer", "python:json:nothing")
