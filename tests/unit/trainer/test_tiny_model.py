import hashlib

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.trainer.tiny_model import TinyModelShape, build_tiny_model, build_tokenizer
from tests.unit.trainer.learning_models import QUESTIONS, SHAPE, tiny_folder


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def tokenizer():
    return build_tokenizer(QUESTIONS, max_vocab_size=512, max_context_tokens=64)


def test_the_folder_loads_with_the_auto_classes():
    model = AutoModelForCausalLM.from_pretrained(tiny_folder())
    loaded = AutoTokenizer.from_pretrained(tiny_folder())
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert model.dtype == torch.float32
    assert loaded.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id[0] == loaded.eos_token_id
    assert model.config.vocab_size == len(loaded)


def test_the_same_seed_gives_the_same_files_and_another_one_other_weights(tmp_path):
    for name, seed in (("one", 5), ("two", 5), ("three", 6)):
        build_tiny_model(tmp_path / name, corpus=QUESTIONS, seed=seed, shape=SHAPE)
    one, two, three = (digests(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two
    assert one["model.safetensors"] != three["model.safetensors"]
    assert one["tokenizer.json"] == three["tokenizer.json"]


def test_building_leaves_the_global_generator_alone(tmp_path):
    before = torch.get_rng_state()
    build_tiny_model(tmp_path / "model", corpus=QUESTIONS, seed=1, shape=SHAPE)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("text", ["-17", "what is 3 + 4?", "tabs\tand\nlines  and   spaces", "h\u00e9llo \u2603", ""])
def test_any_text_comes_back_as_it_was(text):
    assert tokenizer().decode(tokenizer().encode(text)) == text


def test_every_digit_is_one_token():
    assert len(tokenizer().encode("1234567890")) == 10
    assert len(set(tokenizer().encode("1234567890"))) == 10


def test_words_of_the_corpus_are_single_tokens():
    assert len(tokenizer().encode("what")) == 1


def test_special_tokens_are_one_token_each_and_vanish_when_asked():
    found = tokenizer()
    for text in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        assert len(found.encode(text)) == 1
    assert found.decode(found.encode("<|im_start|>7<|im_end|>"), skip_special_tokens=True) == "7"


def test_the_chat_template_renders_turns_like_qwen():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1"}]
    text = tokenizer().apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n"


def test_the_vocabulary_stays_within_its_bound():
    many = [f"word{chr(97 + a)}{chr(97 + b)} " * 3 for a in range(26) for b in range(26)]
    assert len(build_tokenizer(many, max_vocab_size=300, max_context_tokens=64)) <= 300


def test_the_default_shape_is_small():
    assert TinyModelShape().hidden_size == 64
