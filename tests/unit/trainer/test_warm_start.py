import functools
import hashlib
import math
import random
import tempfile
from pathlib import Path

import pytest
import torch

from services.common.errors import ConfigError
from services.common.model_folder import load_model_folder
from services.trainer.warm_start import WarmStartSettings, expected_pass_rate, prepare_warm_start, wrong_answer
from tests.unit.trainer.learning_models import SHAPE

PAIRS = [(f"say {number}", str(number)) for number in range(8)]
SETTINGS = WarmStartSettings(seed=1, max_steps=60, batch_size=16, learning_rate=1e-2, max_pass_rate=0.5, shape=SHAPE)


def build(cache, settings=SETTINGS, pairs=PAIRS):
    lines = []
    result = prepare_warm_start(cache, settings, train_pairs=pairs, held_out_pairs=pairs, progress=lines.append)
    return result, lines


@functools.cache
def held_folder():
    return tempfile.TemporaryDirectory()


@functools.cache
def built():
    return build(Path(held_folder().name))


def digest(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_the_result_is_unsure_and_the_same_settings_give_the_same_weights(tmp_path):
    first, lines = built()
    second, _ = build(tmp_path)
    assert first.folder != second.folder
    assert first.pass_rate <= 0.5
    assert digest(first.folder) == digest(second.folder)
    assert any("learning" in line for line in lines)
    assert any("blurring" in line and "held-out pass rate" in line for line in lines)


def test_the_pass_rate_that_is_told_is_that_of_the_saved_model():
    result, _ = built()
    loaded = load_model_folder(result.folder)
    assert expected_pass_rate(loaded.model, loaded.tokenizer, PAIRS) == pytest.approx(result.pass_rate, abs=1e-9)


def test_a_second_call_uses_what_was_built():
    first, _ = built()
    changed = (first.folder / "model.safetensors").stat().st_mtime_ns
    second, lines = build(Path(held_folder().name))
    assert (first.was_cached, second.was_cached) == (False, True)
    assert second.folder == first.folder
    assert second.pass_rate == first.pass_rate
    assert (first.folder / "model.safetensors").stat().st_mtime_ns == changed
    assert len(lines) == 1


def test_other_settings_or_pairs_lie_under_another_name(tmp_path):
    quick = WarmStartSettings(seed=1, max_steps=1, batch_size=2, max_pass_rate=1.0, shape=SHAPE)
    other = WarmStartSettings(seed=2, max_steps=1, batch_size=2, max_pass_rate=1.0, shape=SHAPE)
    folders = {build(tmp_path, quick)[0].folder, build(tmp_path, other)[0].folder}
    folders.add(build(tmp_path, quick, PAIRS[:4])[0].folder)
    assert len(folders) == 3


def test_a_model_that_stays_too_good_is_an_error_and_leaves_nothing(tmp_path):
    settings = WarmStartSettings(
        seed=1, max_steps=20, batch_size=16, learning_rate=1e-2, wrong_share=0.0, max_pass_rate=0.01, shape=SHAPE
    )
    with pytest.raises(ConfigError, match=r"above 0.01; raise model.warm_start.wrong_share \(it is 0.0\)"):
        build(tmp_path, settings)
    assert list(tmp_path.iterdir()) == []


def test_a_long_phase_is_told_in_a_dozen_lines_its_end_included(tmp_path):
    settings = WarmStartSettings(
        seed=1,
        max_steps=60,
        batch_size=2,
        learn_to_pass_rate=2.0,
        stop_at_pass_rate=-1.0,
        max_pass_rate=1.0,
        shape=SHAPE,
    )
    _, lines = build(tmp_path, settings)
    blurring = [line for line in lines if "blurring" in line]
    assert 8 <= len(blurring) <= 12
    assert "step 2," in blurring[0]
    assert "step 60," in blurring[-1]


def test_no_pairs_are_an_error(tmp_path):
    with pytest.raises(ConfigError, match="0 to train on"):
        build(tmp_path, pairs=[])


def test_the_expected_pass_rate_is_the_share_that_sampling_finds():
    result, _ = built()
    loaded = load_model_folder(result.folder)
    pairs = PAIRS[:2]
    torch.manual_seed(0)
    passed, tries = 0, 400
    for question, answer in pairs:
        chat = [{"role": "user", "content": question}]
        prompt = loaded.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
        batch = {name: value.repeat(tries, 1) for name, value in prompt.items()}
        output = loaded.model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=2)
        wanted = torch.tensor([*loaded.tokenizer.encode(answer), loaded.tokenizer.eos_token_id])
        passed += int((output[:, -2:] == wanted).all(dim=1).sum())
    expected = expected_pass_rate(loaded.model, loaded.tokenizer, pairs)
    spread = math.sqrt(expected * (1 - expected) / (tries * len(pairs)))
    assert passed / (tries * len(pairs)) == pytest.approx(expected, abs=4 * spread)


def test_a_wrong_answer_is_another_one_of_the_pool():
    draw = random.Random(0)
    assert {wrong_answer("2", ["1", "2", "3"], draw) for _ in range(30)} == {"1", "3"}
    assert wrong_answer("2", ["2"], draw) == "2"
