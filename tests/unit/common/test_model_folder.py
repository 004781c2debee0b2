import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from transformers import MambaConfig

from services.common.errors import ConfigError
from services.common.model_folder import (
    check_model_folder,
    context_length,
    find_model_folder,
    load_model_folder,
    load_tokenizer,
)
from tests.unit.trainer.learning_models import SHAPE, tiny_folder


def copy_without(tmp_path, *names):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(), folder)
    for name in names:
        (folder / name).unlink()
    return folder


def test_a_whole_folder_loads_in_float32_with_its_context_length():
    loaded = load_model_folder(tiny_folder())
    assert loaded.model.dtype == torch.float32
    assert loaded.max_context_tokens == SHAPE.max_context_tokens
    assert loaded.tokenizer.chat_template


def test_a_missing_folder_says_what_to_give(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere' is not a folder; give a local Hugging Face folder"):
        check_model_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["config.json"], "has no config.json"),
        (["model.safetensors"], "has no weights"),
        (["tokenizer.json", "tokenizer_config.json"], "has no tokenizer"),
    ],
)
def test_a_missing_file_is_named(tmp_path, missing, said):
    with pytest.raises(ConfigError, match=said):
        check_model_folder(copy_without(tmp_path, *missing))


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no chat template"):
        load_tokenizer(copy_without(tmp_path, "chat_template.jinja"))


@pytest.mark.parametrize("content", ["{", "{}", '{"model": {"type": "none"}}'])
def test_a_broken_tokenizer_is_one_sentence(tmp_path, content):
    folder = copy_without(tmp_path)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"the tokenizer in .* does not load") as raised:
        load_tokenizer(folder)
    assert "\n" not in raised.value.message


def test_broken_weights_are_one_sentence(tmp_path):
    folder = copy_without(tmp_path)
    (folder / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(ConfigError, match=r"the model in .* does not load") as raised:
        load_model_folder(folder)
    assert "\n" not in raised.value.message


def test_an_unknown_architecture_is_one_sentence(tmp_path):
    folder = copy_without(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "no_such_model"}))
    with pytest.raises(ConfigError, match="does not load"):
        load_model_folder(folder)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    folder = copy_without(tmp_path)
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens([f"<extra_{index}>" for index in range(10)])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match="put the tokenizer that belongs to the model there"):
        load_model_folder(folder)


def test_a_config_without_a_context_length_is_refused():
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        context_length(MambaConfig())


def test_a_folder_is_found_without_asking_the_hub():
    assert find_model_folder(str(tiny_folder())) == tiny_folder().resolve()


@pytest.mark.parametrize("path", ["./no/such/folder", "/no/such", "nowhere", "a/b/c"])
def test_what_is_no_folder_and_no_hub_name_is_refused_at_once(path):
    with pytest.raises(ConfigError, match="is not a folder"):
        find_model_folder(path)


def test_a_hub_that_cannot_be_reached_is_one_sentence():
    code = (
        "from services.common.model_folder import find_model_folder\n"
        "try:\n    find_model_folder('nobody/nothing')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=True, timeout=50
    )
    assert "ConfigError model.path 'nobody/nothing' is no folder here and cannot be fetched from the hub" in done.stdout
