import json

import pytest
import tomli_w

from services.common.config import load_config
from services.common.errors import ConfigError
from services.common.types import Message
from services.trainer.dataset import DataRow
from services.trainer.prepare import check_devices, check_prompts, main


def write_config(tmp_path, rows, **model):
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    values = {
        "run": {"directory": str(tmp_path / "runs")},
        "model": {"build": "tiny_qwen3", "hidden_size": 16, "num_layers": 1, "max_context": 64, **model},
        "data": {"source": "data.jsonl"},
    }
    values["model"]["warm_start"] = {"max_steps": 0}
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


def test_good_input_ends_in_the_models_folder(tmp_path, capsys):
    path = write_config(tmp_path, [{"prompt": "1 + 1 =", "answer": "2"}])

    assert main(["--config", str(path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "data: 1 training rows, 0 held out"
    assert json.loads(lines[-1])["model_path"].startswith(str(tmp_path / "runs" / ".models"))


@pytest.mark.parametrize(
    ("rows", "flags", "sentence"),
    [
        ([{"prompt": ""}], [], "data.jsonl line 1: 'prompt' is empty"),
        (
            [{"prompt": "x", "answer": "y"}, {"prompt": "word " * 80, "answer": "y"}],
            [],
            "data.jsonl line 2: the prompt has",
        ),
        ([{"prompt": "x", "answer": "y"}], ["--engine.max_context", "5"], "data.jsonl line 1: the prompt has"),
        ([{"prompt": "x", "answer": "y"}], ["--trainer.total_step", "5"], "did you mean trainer.total_steps"),
    ],
)
def test_bad_input_ends_in_one_sentence_and_status_2(tmp_path, capsys, rows, flags, sentence):
    path = write_config(tmp_path, rows)

    assert main(["--config", str(path), *flags]) == 2

    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("headrace: ")
    assert sentence in error


@pytest.mark.parametrize("key", ["trainer.device", "engine.device"])
def test_a_gpu_that_is_not_there_is_refused_by_its_key(tmp_path, key):
    config = load_config(write_config(tmp_path, []), [f"--{key}", "cuda"])
    check_devices(config, has_cuda=True)

    sentence = f"{key} is 'cuda' and this machine has no CUDA device; use cpu or auto"
    with pytest.raises(ConfigError, match=sentence):
        check_devices(config, has_cuda=False)


class Template:
    """A tokenizer that renders as it is told."""

    def __init__(self, answer):
        self.answer = answer

    def apply_chat_template(self, chat, **_):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([], "line 3: the prompt has no tokens"),
        (RuntimeError("roles must alternate\nmore"), "line 3: the model's chat template cannot render it: roles must"),
        ([1] * 8, "line 3: the prompt has 8 tokens and the context 8"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_named(answer, sentence):
    row = DataRow(messages=(Message(role="user", content="x"),), answer="", metadata_json="{}", origin="d.jsonl line 3")

    with pytest.raises(ConfigError, match=f"d.jsonl {sentence}"):
        check_prompts([row], tokenizer=Template(answer), max_context_tokens=8)


def test_a_prompt_may_leave_room_for_a_single_token():
    row = DataRow(messages=(Message(role="user", content="x"),), answer="", metadata_json="{}", origin="d.jsonl line 3")

    assert check_prompts([row], tokenizer=Template([1] * 7), max_context_tokens=8) == 7
