import subprocess
import sys
from pathlib import Path

from services.common.types import OnStale, WhenFull
from services.trainer.config import run_settings, service_config
from tests.unit.trainer.fakes import make_config


def test_the_run_is_named_by_the_environment_else_by_the_configuration(tmp_path):
    config = make_config(tmp_path)

    assert service_config(config, environment={"HEADRACE_RUN_ID": "demo-1a2b3c"}).run_id == "demo-1a2b3c"
    assert service_config(config, environment={}).run_id == "demo"


def test_traces_lie_in_the_run_directory_unless_they_are_off(tmp_path):
    on, off = make_config(tmp_path), make_config(tmp_path, telemetry={"traces": False})

    assert service_config(on, folder=Path("x")).traces_path == tmp_path / "demo" / "traces.jsonl"
    assert service_config(off).traces_path is None


def test_the_queues_rules_follow_from_the_configuration(tmp_path):
    config = make_config(
        tmp_path,
        async_={"max_staleness": 2, "updates_per_version": 3, "on_stale": "drop"},
        queue={"when_full": "drop_oldest", "lease_seconds": 7.5},
    )

    settings = run_settings(config)

    assert (settings.max_staleness, settings.groups_per_version, settings.max_queue_size) == (2, 6, 18)
    assert (settings.on_stale, settings.when_full, settings.lease_seconds) == (OnStale.DROP, WhenFull.DROP_OLDEST, 7.5)


def test_a_wrong_configuration_is_found_without_loading_torch():
    program = "import sys, services.trainer.__main__; print([m for m in ('torch', 'transformers') if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
