import json
import shutil

import pytest
import torch

from services.common.config.learning import ModelSection
from services.common.config.serving import EngineSection
from services.common.errors import ConfigError
from services.common.types import Message
from services.rollouter.engine.served_model import load_served_model, resolve_placement
from tests.unit.rollouter.engine_models import tiny_folder

CHAT = (Message(role="user", content="what is one"),)


def section(folder=None):
    return ModelSection(path=str(folder or tiny_folder()))


def test_a_folder_gives_model_end_tokens_and_context():
    loaded = load_served_model(section(), EngineSection(device="cpu"))
    assert loaded.context_length == 128
    assert [loaded.tokenizer.decode([token]) for token in loaded.end_ids] == ["", ""]
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training


def test_the_context_can_be_made_shorter_and_never_longer():
    assert load_served_model(section(), EngineSection(device="cpu", max_context=50)).context_length == 50
    assert load_served_model(section(), EngineSection(device="cpu", max_context=500)).context_length == 128


def test_without_configured_end_tokens_the_tokenizers_own_counts(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(), folder)
    path = folder / "generation_config.json"
    settings = json.loads(path.read_text())
    del settings["eos_token_id"]
    path.write_text(json.dumps(settings))
    config = json.loads((folder / "config.json").read_text())
    config["eos_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load_served_model(section(folder), EngineSection(device="cpu"))
    assert loaded.end_ids == (loaded.tokenizer.end_id,)


def test_a_chat_opens_the_assistants_turn():
    tokenizer = load_served_model(section(), EngineSection(device="cpu")).tokenizer
    ids = tokenizer.render(CHAT)
    assert tokenizer.decode(ids).endswith("assistant\n")
    assert len(ids) > len(tokenizer.encode("what is one"))


def test_a_folder_without_a_model_is_one_sentence_for_the_user(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_served_model(section(tmp_path), EngineSection(device="cpu"))


def test_precision_and_place_follow_the_config():
    cpu = torch.device("cpu")
    assert resolve_placement(EngineSection(device="cpu")) == (cpu, torch.float32)
    assert resolve_placement(EngineSection(device="cpu", dtype="bfloat16")) == (cpu, torch.bfloat16)
    assert resolve_placement(EngineSection(device="cuda:1")) == (torch.device("cuda:1"), torch.bfloat16)
    assert resolve_placement(EngineSection(device="cuda:1", dtype="float32"))[1] == torch.float32
