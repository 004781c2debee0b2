import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.common.model_folder import load_model_folder
from services.trainer.export import export_model, remove_debris, replace_folder
from tests.unit.trainer.learning_models import tiny_folder


def test_an_export_loads_and_generates_like_the_model_it_came_from(tmp_path):
    loaded = load_model_folder(tiny_folder())
    with torch.no_grad():
        loaded.model.model.norm.weight.mul_(1.5)
    (tmp_path / ".final.killed" / "new").mkdir(parents=True)
    export_model(loaded.model, loaded.tokenizer, tmp_path / "final")
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "final")
    chat = [{"role": "user", "content": "what is 1 + 2?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    sampling = {"max_new_tokens": 4, "do_sample": False, "temperature": None}
    assert torch.equal(model.generate(**prompt, **sampling), loaded.model.generate(**prompt, **sampling))
    assert model.generation_config.eos_token_id == loaded.model.generation_config.eos_token_id


def test_an_older_export_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "final"
    folder.mkdir()
    (folder / "left_over").write_text("old")
    replace_folder(folder, lambda target: (target / "new").write_text("new"))
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_the_debris_of_a_killed_export_is_removed_and_nothing_else(tmp_path):
    for name in (".final.ab12/new", ".final.cd34/old", ".finale", "final", "checkpoints"):
        (tmp_path / name).mkdir(parents=True)
    remove_debris(tmp_path / "final")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".finale", "checkpoints", "final"]


def test_a_failing_writer_leaves_the_old_folder_and_no_debris(tmp_path):
    folder = tmp_path / "final"
    folder.mkdir()
    (folder / "kept").write_text("old")

    def fail(target):
        (target / "half").write_text("x")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        replace_folder(folder, fail)
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_a_cache_keeps_what_another_writer_put_there_first(tmp_path):
    folder = tmp_path / "built"

    def lose_the_race(target):
        (target / "second").write_text("x")
        replace_folder(folder, lambda first: (first / "first").write_text("x"))

    replace_folder(folder, lose_the_race, keep_existing=True)
    assert [path.name for path in folder.iterdir()] == ["first"]


def test_debris_of_a_killed_writer_is_removed_and_a_living_one_is_left_alone(tmp_path):
    dead = tmp_path / ".model.dead"
    dead.mkdir()
    (dead / "lock").touch()

    def write(target):
        remove_debris(tmp_path / "model")
        (target / "weights").write_text("whole")

    replace_folder(tmp_path / "model", write)
    assert (tmp_path / "model" / "weights").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
