import pytest

from services.common.errors import InvalidInputError
from services.common.types import SamplingParams
from services.rollouter.engine.port import GenerationRequest, check_request


def check(*, prompt=(1, 2), seed=1, **sampling):
    params = SamplingParams(**{"max_new_tokens": 4, **sampling})
    request = GenerationRequest(request_id="a", prompt_ids=prompt, sampling=params, seed=seed)
    check_request(request, context_length=10, vocabulary_size=50)


def test_a_proper_request_passes():
    check()
    check(prompt=(49,) * 9, temperature=0.0, top_p=0.1, top_k=3, stop=("x",), seed=2**63 - 1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prompt": ()}, "0 tokens and the context 10"),
        ({"prompt": (1,) * 10}, "10 tokens and the context 10"),
        ({"prompt": (50,)}, "from 50 to 50"),
        ({"prompt": (-1, 3)}, "from -1 to 3"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"top_k": -1}, "top_k -1"),
        ({"stop": ("",)}, "empty"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_can_never_work_is_refused_with_value_and_bound(wrong, says):
    with pytest.raises(InvalidInputError, match=says):
        check(**wrong)
