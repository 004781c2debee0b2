import queue
import time

import numpy as np
import pytest
import torch

from services.common.errors import HeadraceError, InternalError, UnavailableError
from services.common.types import SamplingParams
from services.rollouter.engine.decode_loop import MAX_PREFILL_TOKENS, DecodeLoop
from services.rollouter.engine.port import GenerationRequest
from services.rollouter.engine.slots import SlotTable
from services.rollouter.engine.weight_swap import PreparedWeights

VOCABULARY = 300


class CountingForward:
    """A model whose next token is always the last one plus one; it can be told to fail."""

    batch_independent = False
    vocabulary_size = VOCABULARY

    def __init__(self):
        self.prefills = []
        self.step_sizes = []
        self.fail_on = set()
        self.broken_after = None
        self.scrubbed = []

    def prefill(self, first_row, prompts):
        if "prefill" in self.fail_on:
            raise RuntimeError("prefill broke")
        self.prefills.append((first_row, list(prompts)))
        return self._logits([prompt[-1] for prompt in prompts])

    def step(self, token_ids, positions):
        if "step" in self.fail_on:
            raise RuntimeError("step broke")
        time.sleep(0.001)
        self.step_sizes.append(len(token_ids))
        return self._logits(token_ids)

    def remove(self, row, last):
        assert row <= last

    def scrub(self, row):
        self.scrubbed.append(row)

    def forget(self):
        pass

    def _logits(self, tokens):
        logits = torch.full((len(tokens), VOCABULARY), -torch.inf)
        for row, token in enumerate(tokens):
            logits[row, (int(token) + 1) % VOCABULARY] = torch.nan if token == self.broken_after else 0.0
        return logits


@pytest.fixture
def parts():
    forward = CountingForward()
    delivered = queue.Queue()

    def post(items):
        for deliver, item in items:
            deliver(item)

    loop = DecodeLoop(
        forward=forward,
        table=SlotTable(max_slots=4, context_length=5000, end_ids=(), vocabulary_size=VOCABULARY),
        decode=lambda ids: " ".join(map(str, ids)),
        post=post,
        max_slots=4,
        threads=1,
    )
    yield loop, forward, delivered
    loop.stop()


def submit(parts, name, *, prompt=(1,), count=3, live=False):
    loop, _, delivered = parts
    request = GenerationRequest(
        request_id=name, prompt_ids=prompt, sampling=SamplingParams(max_new_tokens=count), seed=0
    )
    loop.submit(request, deliver=lambda item: delivered.put((name, item)), live=live)


def collect(parts, count):
    return dict(parts[2].get(timeout=10) for _ in range(count))


def test_requests_are_stepped_together_and_end_on_their_own(parts):
    submit(parts, "short", count=2)
    submit(parts, "long", prompt=(10,), count=5)
    parts[0].start()
    done = collect(parts, 2)
    assert done["short"].token_ids.tolist() == [2, 3]
    assert done["long"].token_ids.tolist() == [11, 12, 13, 14, 15]
    assert done["long"].text == "11 12 13 14 15"
    assert parts[1].step_sizes == [2, 1, 1, 1]


def test_waiting_requests_take_the_slots_that_become_free(parts):
    for index in range(6):
        submit(parts, str(index), count=2 if index == 0 else 9)
    parts[0].start()
    collect(parts, 6)
    assert [(first, len(prompts)) for first, prompts in parts[1].prefills][:2] == [(0, 4), (3, 1)]
    assert max(parts[1].step_sizes) == 4


def test_one_prefill_is_bounded_and_equal_prompts_count_once(parts):
    long = (1,) * (MAX_PREFILL_TOKENS // 2)
    for name, prompt in (("a", long), ("b", long), ("c", (*long, 2)), ("d", long)):
        submit(parts, name, prompt=prompt, count=1)
    parts[0].start()
    collect(parts, 4)
    assert [len(prompts) for _, prompts in parts[1].prefills] == [2, 1, 1]


def test_a_failed_prefill_fails_the_newcomers_only(parts):
    submit(parts, "old", count=200)
    parts[0].start()
    time.sleep(0.05)
    parts[1].fail_on.add("prefill")
    submit(parts, "new")
    name, item = parts[2].get(timeout=10)
    assert (name, type(item)) == ("new", InternalError)
    assert len(collect(parts, 1)["old"].token_ids) == 200


def test_a_failed_step_fails_all_running_requests_and_the_loop_goes_on(parts):
    parts[1].fail_on.add("step")
    submit(parts, "a")
    submit(parts, "b")
    parts[0].start()
    failed = collect(parts, 2)
    assert all(isinstance(item, InternalError) for item in failed.values())
    assert "RuntimeError" in failed["a"].message
    parts[1].fail_on.clear()
    submit(parts, "c")
    assert len(collect(parts, 1)["c"].token_ids) == 3


def test_non_finite_logits_fail_their_own_request_and_its_row_is_wiped(parts):
    parts[1].broken_after = 4
    submit(parts, "good", prompt=(100,), count=8)
    submit(parts, "bad", prompt=(1,), count=8)
    parts[0].start()
    done = collect(parts, 2)
    assert isinstance(done["bad"], InternalError)
    assert len(done["good"].token_ids) == 8
    assert parts[1].scrubbed == [1]


def test_an_aborted_request_is_never_heard_of_again(parts):
    submit(parts, "running", count=4000)
    parts[0].start()
    time.sleep(0.02)
    assert list(parts[0].oldest_versions()) == ["running"]
    for index in range(4):
        submit(parts, f"waiting {index}", count=4000)
    for index in range(4):
        parts[0].abort(f"waiting {index}")
    parts[0].abort("running")
    parts[0].abort("unknown")
    submit(parts, "next")
    assert list(collect(parts, 1)) == ["next"]
    assert parts[0].oldest_versions() == {}
    assert parts[2].empty()


def test_a_stopped_loop_fails_what_it_holds_and_refuses_what_comes(parts):
    for index in range(6):
        submit(parts, str(index), count=4000)
    parts[0].start()
    time.sleep(0.02)
    adoption = parts[0].adopt(PreparedWeights(pairs=()), 1, "digest", keep_running=False)
    parts[0].stop()
    assert all(isinstance(item, UnavailableError) for item in collect(parts, 6).values())
    with pytest.raises(UnavailableError):
        adoption.result(timeout=1)
    with pytest.raises(UnavailableError):
        submit(parts, "late")
    parts[0].abort("late")


def test_a_loop_that_dies_says_so_to_everybody(parts):
    loop = parts[0]
    submit(parts, "a", count=4000)
    loop.start()
    time.sleep(0.02)

    class BadWeights:
        def swap(self):
            raise RuntimeError("no memory")

    adoption = loop.adopt(BadWeights(), 1, "digest", keep_running=True)
    assert isinstance(collect(parts, 1)["a"], InternalError)
    with pytest.raises(HeadraceError):
        adoption.result(timeout=1)
    with pytest.raises(InternalError, match="died"):
        submit(parts, "late")


def test_a_live_request_is_told_about_its_tokens_as_they_come(parts):
    submit(parts, "a", count=150, live=True)
    parts[0].start()
    chunks = []
    while not chunks or chunks[-1].end_reason is None:
        chunks.append(parts[2].get(timeout=10)[1])
    assert len(chunks) > 3
    assert np.concatenate([chunk.token_ids for chunk in chunks]).tolist() == [(2 + index) % 300 for index in range(150)]


def test_a_withdrawn_adoption_never_happens(parts):
    loop = parts[0]
    submit(parts, "a", count=100)
    loop.start()
    time.sleep(0.02)
    loop.hold()
    adoption = loop.adopt(PreparedWeights(pairs=()), 1, "digest", keep_running=False)
    assert adoption.cancel()
    loop.release()
    collect(parts, 1)
    submit(parts, "b")
    assert collect(parts, 1)["b"].version_spans[0].version == -1
    assert loop.policy == (-1, "")
