"""Who holds the run up, in one sentence with the key to change."""

from __future__ import annotations

_MUCH = 0.5
_LITTLE = 0.2


def advise(*, trainer_wait_share: float | None, rollouter_wait_share: float | None) -> str:
    """Say which side is the bottleneck.

    Args:
        trainer_wait_share: share of its time that the trainer waited for groups, in [0, 1]; None when unknown.
        rollouter_wait_share: share of its time that the average rollouter had nothing to do; None when unknown.
    """
    if trainer_wait_share is None:
        return "Not enough was measured to name a bottleneck."
    trainer = f"the trainer waited {trainer_wait_share:.0%} of its time"
    if rollouter_wait_share is None:
        both = trainer
    else:
        both = f"{trainer}, the rollouters {rollouter_wait_share:.0%} of theirs"
    if trainer_wait_share > _MUCH:
        if rollouter_wait_share is not None and rollouter_wait_share > _MUCH:
            return (
                f"Both sides wait for each other ({both}): raise async.max_staleness, or async.mode from sync "
                "towards fully_async, so that generation may run further ahead."
            )
        return (
            f"The rollouters are the bottleneck ({both}): raise rollout.replicas or engine.max_slots, "
            "or lower rollout.max_new_tokens."
        )
    if rollouter_wait_share is not None and rollouter_wait_share > _MUCH:
        return (
            f"The trainer is the bottleneck ({both}): raise trainer.threads or lower rollout.replicas; "
            "a faster trainer.device helps most."
        )
    if trainer_wait_share < _LITTLE and (rollouter_wait_share is None or rollouter_wait_share < _LITTLE):
        return f"Both sides are busy ({both}); more hardware is the only lever."
    return f"No side holds the other up for long ({both})."
