"""The agent port: what turns a task into token rows, by calling the model.

An agent loop owns the course of one attempt (one turn, several, tools) and nothing else: it knows no lease, no queue,
no reward. Token ids are the truth: it extends a history of ids and never tokenises text that was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.types import EndReason, Failure, MemberKey, Message, SamplingParams, Task, TokenRow
    from services.rollouter.engine.port import Generation


class AttemptFailedError(Exception):
    """An attempt ended without a trajectory, for a reason that is known by name. Never leaves the rollouter."""

    def __init__(self, failure: Failure) -> None:
        """Carry what is put in place of a trajectory.

        Args:
            failure: what kind, and a sentence.
        """
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempt:
    """What an agent loop made of a task."""

    rows: tuple[TokenRow, ...]
    """One row, or several when the history was rewritten."""
    completion: str
    """The last assistant text."""
    end_reason: EndReason
    """Why it ended."""


class Model(Protocol):
    """The model as an agent loop sees it."""

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        ...

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Chat messages as token ids, ready for the assistant's turn."""
        ...

    async def generate(self, prompt_ids: tuple[int, ...], *, sampling: SamplingParams, seed: int) -> Generation:
        """Sample one completion.

        Raises:
            AttemptFailedError: the engine failed; the loop should let it pass.
        """
        ...


class AgentLoop(Protocol):
    """Runs one attempt at a task."""

    async def run(self, task: Task, key: MemberKey, model: Model) -> Attempt:
        """Produce the rows of one trajectory.

        Args:
            task: what is to be tried.
            key: which trajectory of it.
            model: answers prompts.

        Raises:
            AttemptFailedError: there is no trajectory, for a named reason. Anything else that is raised counts as
                `agent_error`.
        """
        ...
