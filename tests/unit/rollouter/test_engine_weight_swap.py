import pytest
import torch

from services.common.errors import CorruptDataError
from services.rollouter.engine.weight_swap import WeightSwap, release
from tests.unit.rollouter.engine_models import tiny_model, weights_that_say

IDS = torch.tensor([[5, 6, 7]])


def logits_of(model):
    with torch.inference_mode():
        return model(input_ids=IDS).logits


def test_a_swap_changes_every_weight_and_tied_names_follow():
    model = tiny_model()
    WeightSwap(model).prepare(weights_that_say(9)).swap()
    assert logits_of(model).argmax(dim=-1).tolist() == [[9, 9, 9]]
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_the_head_may_be_named_instead_of_the_embedding_it_is_tied_to():
    model = tiny_model()
    tensors = weights_that_say(9)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    WeightSwap(model).prepare(tensors).swap()
    assert logits_of(model).argmax(dim=-1).tolist() == [[9, 9, 9]]


def test_fitting_tensors_are_taken_over_without_a_copy():
    model = tiny_model()
    tensors = weights_that_say(9)
    WeightSwap(model).prepare(tensors).swap()
    assert model.model.norm.weight.data_ptr() == tensors["model.norm.weight"].data_ptr()


def test_other_dtypes_and_unaligned_tensors_are_converted_before_the_swap():
    model = tiny_model()
    tensors = {name: tensor.bfloat16() for name, tensor in weights_that_say(9).items()}
    norm = tensors["model.norm.weight"].float()
    tensors["model.norm.weight"] = torch.cat((torch.zeros(1), norm))[1:]
    WeightSwap(model).prepare(tensors).swap()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.model.norm.weight.data_ptr() % 64 == 0
    assert torch.equal(model.model.norm.weight.data, norm)


def without_norm(tensors):
    del tensors["model.norm.weight"]


def with_stranger(tensors):
    tensors["stranger"] = torch.zeros(1)


def with_other_shape(tensors):
    tensors["model.norm.weight"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(without_norm, "lack 1 names"), (with_stranger, "1 unknown names"), (with_other_shape, "shape")],
)
def test_weights_of_another_model_are_refused_and_change_nothing(spoil, says):
    model = tiny_model()
    before = logits_of(model)
    tensors = weights_that_say(9)
    spoil(tensors)
    with pytest.raises(CorruptDataError, match=says):
        WeightSwap(model).prepare(tensors)
    assert torch.equal(logits_of(model), before)


def test_the_old_weights_are_handed_back_and_can_be_let_go():
    model = tiny_model()
    before = model.model.norm.weight.data_ptr()
    old = WeightSwap(model).prepare(weights_that_say(9)).swap()
    assert before in {tensor.data_ptr() for tensor in old}
    release(old)
    assert old == []
