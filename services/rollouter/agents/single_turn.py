"""One prompt, one completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from services.common.seeds import sample_seed
from services.common.types import Failure, FailureReason, TokenRow, VersionSpan
from services.rollouter.agents.port import Attempt, AttemptFailedError

if TYPE_CHECKING:
    from services.common.types import MemberKey, Task
    from services.rollouter.agents.port import Model
    from services.rollouter.engine.port import Generation


class SingleTurn:
    """Renders the task's messages and samples one answer.

    Example: `attempt = await SingleTurn().run(assignment.task, assignment.key, model)`.
    """

    async def run(self, task: Task, key: MemberKey, model: Model) -> Attempt:
        """Produce the one row of a trajectory; see the port."""
        prompt_ids = model.render(task.messages)
        if len(prompt_ids) >= model.context_length:
            raise AttemptFailedError(
                Failure(
                    reason=FailureReason.PROMPT_TOO_LONG,
                    message=f"the prompt has {len(prompt_ids)} tokens and the context {model.context_length}; "
                    "shorten the prompt or raise engine.max_context",
                )
            )
        seed = sample_seed(task.seed, task.sequence, key.member)
        generation = await model.generate(prompt_ids, sampling=task.sampling, seed=seed)
        return Attempt(
            rows=(completion_row(prompt_ids, generation),),
            completion=generation.text,
            end_reason=generation.end_reason,
        )


def completion_row(prompt_ids: tuple[int, ...], generation: Generation) -> TokenRow:
    """Join a prompt and its completion to one training row; only the completion is trained."""
    num_prompt, num_sampled = len(prompt_ids), len(generation.token_ids)
    return TokenRow(
        token_ids=np.concatenate([np.asarray(prompt_ids, dtype=np.int32), generation.token_ids.astype(np.int32)]),
        loss_mask=np.repeat(np.array([0, 1], dtype=np.uint8), (num_prompt, num_sampled)),
        logprobs=np.concatenate([np.zeros(num_prompt, dtype=np.float32), generation.logprobs.astype(np.float32)]),
        version_spans=tuple(
            VersionSpan(start=span.start + num_prompt, end=span.end + num_prompt, version=span.version)
            for span in generation.version_spans
        ),
    )
