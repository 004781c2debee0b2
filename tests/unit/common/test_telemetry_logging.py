import json
import logging

import pytest
import structlog

from services.common.telemetry import names, trace
from services.common.telemetry.logging import setup_logging

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture(autouse=True)
def _restored():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    structlog.reset_defaults()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_service_run_and_trace(tmp_path):
    path = tmp_path / "logs" / "queue.log"
    setup_logging("queue", run_id="run", path=path)
    with trace.start_span(names.SPAN_QUEUE_PUT, parent=PARENT):
        structlog.get_logger("headrace.queue").info("stored", groups=3)
    structlog.get_logger("headrace.queue").warning("outside")
    stored, outside = lines(path)
    assert stored | {"timestamp": ""} == {
        "service": "queue",
        "run": "run",
        "event": "stored",
        "groups": 3,
        "level": "info",
        "logger": "headrace.queue",
        "timestamp": "",
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
    }
    assert "trace_id" not in outside


def test_the_standard_librarys_logs_go_the_same_way(tmp_path):
    path = tmp_path / "log"
    setup_logging("reward", path=path)
    logging.getLogger("somebody").warning("found %d of %d", 1, 2)
    (line,) = lines(path)
    assert (line["event"], line["logger"], line["service"]) == ("found 1 of 2", "somebody", "reward")


def test_the_level_holds_for_both(tmp_path):
    path = tmp_path / "log"
    setup_logging("reward", level="warning", path=path)
    structlog.get_logger("headrace").info("quiet")
    logging.getLogger("somebody").info("quiet")
    structlog.get_logger("headrace").error("loud")
    assert [line["event"] for line in lines(path)] == ["loud"]


def test_a_traceback_is_text_without_local_variables(tmp_path):
    path = tmp_path / "log"
    setup_logging("reward", path=path)
    hidden = "hunter" + "2"
    try:
        int("broken")
    except ValueError:
        structlog.get_logger("headrace").exception("failed")
    (line,) = lines(path)
    assert "ValueError: invalid literal" in line["exception"]
    assert hidden not in path.read_text()


def test_a_second_set_up_replaces_the_first(tmp_path):
    setup_logging("queue", path=tmp_path / "first")
    setup_logging("queue", path=tmp_path / "second")
    structlog.get_logger("headrace").info("once")
    assert lines(tmp_path / "first") == []
    assert len(lines(tmp_path / "second")) == 1


def test_standard_error_gets_json_when_it_is_no_terminal(capsys):
    setup_logging("queue", console=True)
    structlog.get_logger("headrace").info("hello")
    assert json.loads(capsys.readouterr().err)["event"] == "hello"


def test_what_is_bound_to_the_task_is_on_its_lines(tmp_path):
    path = tmp_path / "log"
    setup_logging("queue", path=path)
    with structlog.contextvars.bound_contextvars(replica="r1"):
        structlog.get_logger("headrace").info("hello")
    assert lines(path)[0]["replica"] == "r1"
