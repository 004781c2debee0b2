from services.common.config import RunConfig
from services.rollouter.config import service_config

RUN = RunConfig.model_validate(
    {
        "run": {"name": "demo"},
        "model": {"path": "m"},
        "data": {"source": "d.jsonl"},
        "async": {"max_staleness": 3},
        "engine": {"max_slots": 100},
    }
)


def test_every_start_has_an_identity_of_its_own():
    first = service_config(RUN, replica_id="r0", environment={})
    second = service_config(RUN, replica_id="r0", environment={})
    assert first.replica_id.startswith("r0-")
    assert first.replica_id != second.replica_id


def test_the_environment_names_run_and_replica():
    config = service_config(RUN, environment={"HEADRACE_RUN_ID": "demo-1a2b", "HEADRACE_REPLICA_ID": "rollouter-1"})
    assert config.run_id == "demo-1a2b"
    assert config.replica_id.startswith("rollouter-1-")


def test_settings_follow_from_the_run():
    config = service_config(RUN, environment={})
    assert config.run_id == "demo"
    assert config.worker.max_staleness == 3
    assert config.worker.max_finishing == 200
    assert config.score_seconds == RUN.reward.timeout_seconds + 60
    assert str(config.traces_path) == "runs/demo/traces.jsonl"
