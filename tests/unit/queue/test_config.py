from __future__ import annotations

import pytest

from services.common.config import load_config
from services.common.errors import ConfigError
from services.queue.config import REDIS_URL_VARIABLE, service_config

FILE = """
[model]
build = "tiny_qwen3"
[data]
source = "reasoning_gym:chain_sum"
"""


@pytest.fixture
def config(tmp_path):
    def load(*flags):
        path = tmp_path / "config.toml"
        path.write_text(FILE)
        return load_config(path, flags)

    return load


def test_the_config_names_the_server(config):
    settings = service_config(config("--queue.redis_url", "redis://:secret@host:1/0", "--queue.address", "0.0.0.0:7"))
    assert (settings.redis_url, settings.address) == ("redis://:secret@host:1/0", "0.0.0.0:7")
    assert "secret" not in repr(settings)


def test_the_environment_names_it_otherwise(config, monkeypatch):
    monkeypatch.setenv(REDIS_URL_VARIABLE, "redis://other:2/0")
    assert service_config(config()).redis_url == "redis://other:2/0"


def test_no_server_is_an_error_that_says_what_to_set(config, monkeypatch):
    monkeypatch.delenv(REDIS_URL_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=r"queue\.redis_url"):
        service_config(config())


def test_traces_that_are_off_are_not_sampled(config):
    url = ("--queue.redis_url", "redis://host:1/0")
    assert service_config(config(*url, "--telemetry.sample_ratio", "0.5")).sample_ratio == 0.5
    assert service_config(config(*url, "--telemetry.traces", "false")).sample_ratio == 0.0


def test_quotas_are_the_services_own_and_bounded_by_default(config):
    url = ("--queue.redis_url", "redis://host:1/0")
    quotas = service_config(config(*url)).quotas
    assert (quotas.max_runs, quotas.bytes_per_run, quotas.open_tasks_per_run) == (1000, 16 * 1024**3, 1_000_000)
    assert quotas.keep_finished_seconds == 7 * 24 * 3600
    flags = ("--queue.max_runs", "2", "--queue.quota_bytes", "0", "--queue.quota_open_tasks", "9")
    quotas = service_config(config(*url, *flags, "--queue.keep_finished_seconds", "0")).quotas
    assert (quotas.max_runs, quotas.bytes_per_run, quotas.open_tasks_per_run) == (2, 0, 9)
    assert quotas.keep_finished_seconds == 0
