import pytest

from services.common.config.serving import RewardSection
from services.common.errors import ConfigError
from services.reward.config import service_config


def test_the_section_becomes_the_services_settings():
    config = service_config(RewardSection(scorer="numeric", workers=2, timeout_seconds=3.0, max_pending=7))
    assert (config.options.scorer, config.workers, config.timeout_seconds, config.max_pending) == ("numeric", 2, 3.0, 7)


def test_a_scorer_that_does_not_exist_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="did you mean 'numeric'"):
        service_config(RewardSection(scorer="numerical"))
