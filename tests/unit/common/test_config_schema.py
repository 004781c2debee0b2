"""The schema: documented, frozen, and with presets that explicit keys win over."""

import pytest
from pydantic import BaseModel, ValidationError

from services.common.config import RunConfig
from services.common.config.learning import PRESETS
from services.common.config.loader import _section_type

_MINIMAL = {"model": {"path": "some-model"}, "data": {"source": "rows.jsonl"}}


def _config(**sections):
    return RunConfig.model_validate({**_MINIMAL, **sections})


def _sections(model=RunConfig, prefix=""):
    yield prefix or "RunConfig", model
    for name, info in model.model_fields.items():
        section = _section_type(info.annotation)
        if section is not None:
            yield from _sections(section, f"{prefix}{name}.")


@pytest.mark.parametrize(("name", "section"), list(_sections()))
def test_every_section_and_field_is_documented(name: str, section: type[BaseModel]):
    assert section.__doc__
    undocumented = [name + field for field, info in section.model_fields.items() if not info.description]
    assert not undocumented


@pytest.mark.parametrize("mode", sorted(PRESETS))
def test_a_mode_sets_its_three_keys(mode):
    chosen = _config(**{"async": {"mode": mode}}).async_
    assert {key: getattr(chosen, key) for key in PRESETS[mode]} == PRESETS[mode]


def test_an_explicit_key_wins_over_the_mode():
    chosen = _config(**{"async": {"mode": "sync", "max_staleness": 3}}).async_
    assert (chosen.max_staleness, chosen.partial_rollout) == (3, False)


def test_without_a_mode_generation_runs_fully_async():
    chosen = _config().async_
    assert (chosen.mode, chosen.max_staleness, chosen.partial_rollout) == ("fully_async", 2, True)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError):
        _config().trainer.total_steps = 3


def test_the_queue_bound_follows_from_staleness_and_batch():
    config = _config(**{"async": {"max_staleness": 2, "updates_per_version": 3}, "trainer": {"groups_per_step": 4}})
    assert config.groups_per_version == 12
    assert config.max_queue_size == 36
    assert _config(queue={"max_queue_size": 5}).max_queue_size == 5


@pytest.mark.parametrize(
    ("trainer", "updates", "groups"),
    [
        ({"checkpoint_every": 10, "groups_per_step": 16}, 1, 160),
        ({"checkpoint_every": 10, "groups_per_step": 16}, 4, 192),
        ({"checkpoint_every": 10, "groups_per_step": 16, "total_steps": 5}, 1, 80),
    ],
)
def test_groups_between_two_commits_are_counted_up_to_the_next_version(trainer, updates, groups):
    config = _config(trainer=trainer, **{"async": {"updates_per_version": updates}})

    assert config.uncommitted_groups == groups


def test_more_groups_between_two_commits_than_the_queue_keeps_are_refused():
    with pytest.raises(ValidationError, match="leaves 100001 groups between two commits, and the queue keeps at most"):
        _config(trainer={"checkpoint_every": 100_001, "groups_per_step": 1, "total_steps": 10**6})
