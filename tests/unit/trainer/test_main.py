import pytest

from services.common.errors import (
    ConfigError,
    ConflictError,
    FencedError,
    InternalError,
    QuotaError,
    ReconcileRequiredError,
    StalledError,
    StateFormatError,
    StorageError,
    UnavailableError,
)
from services.trainer.__main__ import exit_status, sentence


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnavailableError("the queue is away"), 1),
        (InternalError("loss is not finite"), 1),
        (StorageError("no space left"), 1),
        (ConfigError("no such file"), 2),
        (FencedError("epoch 3 was replaced"), 4),
        (StalledError("no group came"), 3),
        (ConflictError("other settings"), 3),
        (ReconcileRequiredError("no checkpoint"), 3),
        (QuotaError("the queue grants 10 bytes"), 3),
        (StateFormatError("format 2"), 3),
    ],
)
def test_the_exit_status_says_whether_starting_again_can_help(error, status):
    assert exit_status(error) == status


def test_a_replaced_trainer_says_so():
    assert sentence(FencedError("epoch 3 was replaced")) == (
        "a newer trainer has taken the run over, so this one ends (epoch 3 was replaced)"
    )
    assert sentence(StalledError("no group came")) == "no group came"
