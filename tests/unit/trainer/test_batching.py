import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.common.errors import InvalidInputError
from services.common.types import Group, TaskId
from services.trainer.backend.port import TrainingRow
from services.trainer.batching import check_rows, collate, plan_micro_batches, sampled_logprobs, training_rows
from tests.factories import make_trajectory
from tests.unit.trainer.learning_models import make_row

CPU = torch.device("cpu")


def make_group(*, num_members):
    return Group(
        task_id=TaskId("00000000"),
        attempt=0,
        sequence=0,
        group_size=num_members,
        oldest_version=0,
        trajectories=tuple(make_trajectory(member=member) for member in range(num_members)),
        put_times=(0.0,) * num_members,
    )


def test_the_plan_fills_micro_batches_up_to_the_budget_longest_first():
    assert plan_micro_batches([3, 5, 5, 1, 2], max_tokens=10) == [(1, 2), (0, 4, 3)]


def test_ties_keep_their_order():
    assert plan_micro_batches([4, 4, 4, 4], max_tokens=8) == [(0, 1), (2, 3)]


def test_a_row_longer_than_the_budget_stands_alone():
    assert plan_micro_batches([2, 30, 2], max_tokens=8) == [(1,), (0, 2)]


def test_no_rows_need_no_micro_batch():
    assert plan_micro_batches([], max_tokens=8) == []


@pytest.mark.parametrize("max_tokens", [1, 7, 20, 1000])
def test_every_row_is_planned_once(max_tokens):
    lengths = np.random.default_rng(0).integers(1, 12, size=50).tolist()
    plan = plan_micro_batches(lengths, max_tokens=max_tokens)
    assert sorted(index for part in plan for index in part) == list(range(50))
    assert all(len(part) == 1 or len(part) * max(lengths[i] for i in part) <= max_tokens for part in plan)


def test_collate_pads_on_the_right_and_keeps_the_chosen_order():
    batch = [
        TrainingRow(row=make_row([5, 6], [7], logprob=-0.5), advantage=1.0),
        TrainingRow(row=make_row([5], [8, 9, 10], logprob=-0.25), advantage=-1.0),
    ]
    micro = collate(batch, (1, 0), device=CPU)
    assert micro.token_ids.tolist() == [[5, 8, 9, 10], [5, 6, 7, 0]]
    assert micro.mask.tolist() == [[False, True, True, True], [False, False, True, False]]
    assert micro.old_logprobs.tolist() == [[0.0, -0.25, -0.25, -0.25], [0.0, 0.0, -0.5, 0.0]]
    assert micro.advantages.tolist() == [[-1.0], [1.0]]
    assert micro.indices == (1, 0)


def test_every_row_of_a_trajectory_gets_the_trajectory_s_advantage():
    group = make_group(num_members=2)
    first, second = group.trajectories
    two_rows = replace(first, rows=(make_row([1], [2]), make_row([3], [4, 5])))
    group = replace(group, trajectories=(two_rows, second))
    rows = training_rows([group], [[1.5, -0.5]])
    assert [row.advantage for row in rows] == [1.5, 1.5, -0.5]
    assert rows[1].row is two_rows.rows[1]


def test_advantages_that_do_not_match_the_group_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        training_rows([make_group(num_members=2)], [[1.0]])


def test_log_probs_are_those_of_the_tempered_distribution():
    logits = torch.tensor([[[0.0, math.log(4.0)], [0.0, 0.0], [9.0, 9.0]]])
    mask = torch.tensor([[False, True, True]])
    logprobs, entropy = sampled_logprobs(logits, torch.tensor([[0, 1, 0]]), mask=mask, temperature=2.0)
    # weights 1 and 4 become 1 and 2 at temperature 2
    assert logprobs[0].tolist() == pytest.approx([0.0, math.log(2 / 3), math.log(0.5)], abs=1e-6)
    expected = -(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3)
    assert entropy[0].tolist() == pytest.approx([0.0, expected, math.log(2.0)], abs=1e-6)


def test_log_probs_are_computed_in_float32_from_half_precision_scores():
    logits = torch.tensor([[[0.0, 1.0], [0.0, 0.0]]], dtype=torch.bfloat16)
    mask = torch.tensor([[False, True]])
    logprobs, _ = sampled_logprobs(logits, torch.tensor([[0, 1]]), mask=mask, temperature=1.0)
    assert logprobs.dtype == torch.float32
    assert float(logprobs[0, 1]) == pytest.approx(-math.log(1 + math.exp(-1)), abs=1e-6)


def test_only_the_last_scores_are_needed():
    logits = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    ids = torch.randint(0, 5, (2, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]], dtype=torch.bool)
    full, _ = sampled_logprobs(logits, ids, mask=mask, temperature=1.0)
    last, _ = sampled_logprobs(logits[:, 2:], ids, mask=mask, temperature=1.0)
    assert torch.equal(full, last)


def test_scores_at_masked_places_never_reach_a_gradient():
    logits = torch.zeros(1, 3, 4)
    logits[0, 1] = math.nan
    logits.requires_grad_()
    mask = torch.tensor([[False, True, False]])
    logprobs, _ = sampled_logprobs(logits, torch.tensor([[0, 1, 2]]), mask=mask, temperature=1.0)
    logprobs.sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert torch.equal(logits.grad[0, 1:], torch.zeros(2, 4))


def test_check_rows_counts_the_sampled_tokens():
    assert check_rows([make_row([1, 2], [3]), make_row([1], [2, 3])], vocab_size=4, max_context_tokens=3) == 3


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (make_row([1, 2], [3], logprob=math.nan), "sampled token without a finite log-prob"),
        (make_row([1, 2], [3, 3]), "row 0 has 4 tokens; the model's context is 3"),
        (make_row([1], [9]), "token id outside 0..3"),
        (make_row([], [1, 2]), "first token was sampled"),
        (make_row([1, 2], []), "no sampled token"),
        (replace(make_row([1], [2]), loss_mask=np.zeros(3, np.uint8)), "3 mask values"),
    ],
)
def test_a_malformed_row_is_refused_with_its_reason(row, said):
    with pytest.raises(InvalidInputError, match=said):
        check_rows([row], vocab_size=4, max_context_tokens=3)
