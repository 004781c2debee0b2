import pytest
import torch

from services.common.tensors import build_manifest, byte_view
from services.common.types import RunId


def test_a_byte_view_is_the_tensors_own_memory():
    tensor = torch.zeros(3, dtype=torch.bfloat16)
    view = byte_view(tensor)
    view[1] = 0x3F
    view[0] = 0x80
    assert tensor[0].item() == 1.0


def test_a_view_keeps_the_memory_alive():
    view = byte_view(torch.full((1000,), 7, dtype=torch.uint8))
    assert bytes(view) == b"\x07" * 1000


def test_a_tensor_that_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match="not contiguous"):
        byte_view(torch.zeros(4, 4).t()[1:])


def test_parameters_that_require_gradients_are_described():
    manifest = build_manifest({"w": torch.nn.Parameter(torch.ones(2, 2))}, run_id=RunId("demo"), epoch=1, version=0)
    assert manifest.tensors[0].dtype == "float32"
    assert manifest.tensors[0].shape == (2, 2)
