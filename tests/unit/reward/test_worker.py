import io
import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from services.common.scoring import ScorerOptions
from services.reward.frames import encode_frame, read_frame
from services.reward.worker import Judge
from tests.unit.reward.builders import named


def judge(*functions, **options):
    options.setdefault("scorer", "exact_match")
    return Judge(ScorerOptions(python_scorers=tuple(named(function) for function in functions), **options))


def ask(scorer="exact_match", completion="4", answer="4", metadata="{}"):
    return {
        "scorer": scorer,
        "completion": completion,
        "answer": answer,
        "metadata_json": metadata,
        "messages": [["user", "2 + 2?"]],
    }


def test_a_verdict_is_a_reward_with_parts():
    assert judge().answer(ask()) == {"reward": 1.0, "parts": {"correct": 1.0}}


def test_only_what_extract_finds_last_is_scored():
    strict = judge(extract=r"<answer>(.*?)</answer>")
    assert strict.answer(ask(completion="<answer>5</answer> no, <answer>4</answer>"))["reward"] == 1.0
    assert strict.answer(ask(completion="4"))["reward"] == 0.0
    assert strict.answer(ask(completion="4", answer=""))["reward"] == 0.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "raised KeyError"),
        ("leaves", "raised SystemExit"),
        ("not_finite", "finite"),
        ("words", "number is expected"),
    ],
)
def test_a_bad_scorer_is_an_error_and_never_a_reward(function, message):
    answer = judge(function).answer(ask(named(function)))
    assert "reward" not in answer
    assert message in answer["error"]


@pytest.mark.parametrize("metadata", ["{", "[1]", "null", "3"])
def test_metadata_that_is_no_object_is_an_error(metadata):
    assert "metadata_json" in judge().answer(ask(metadata=metadata))["error"]


def test_a_scorer_that_the_configuration_does_not_name_is_not_imported():
    assert "no scorer" in judge().answer(ask("python:antigravity:fly"))["error"]
    assert "antigravity" not in sys.modules


def test_messages_are_short_and_can_be_encoded():
    error = judge().answer(ask("x" * 10_000 + "\ud800"))["error"]
    assert len(error) <= 300
    error.encode()


def test_the_program_answers_frames_and_what_scorers_print_does_not_disturb_it():
    options = ScorerOptions(scorer="exact_match", python_scorers=(named("prints"),))
    hello = {"options": asdict(options), "preload": [named("prints")], "timeout_seconds": 10.0}
    frames = [hello, ask(named("prints")), ask(completion="5")]
    process = subprocess.run(
        [sys.executable, "-m", "services.reward.worker"],
        input=b"".join(encode_frame(frame) for frame in frames),
        capture_output=True,
        check=True,
        timeout=20,
    )
    answers = io.BytesIO(process.stdout)
    assert read_frame(answers)["ready"][0][0] == named("prints")
    assert read_frame(answers)["reward"] == 1.0
    assert read_frame(answers)["reward"] == 0.0
    assert read_frame(answers) is None
    assert b"raw bytes on standard output" in process.stderr


def test_a_worker_whose_parent_is_gone_ends_even_in_the_middle_of_a_score():
    options = ScorerOptions(scorer="exact_match", python_scorers=(named("holds_the_interpreter"),))
    hello = {"options": asdict(options), "preload": [], "timeout_seconds": -4.0}
    process = subprocess.run(
        [sys.executable, "-m", "services.reward.worker"],
        input=encode_frame(hello) + encode_frame(ask(named("holds_the_interpreter"))),
        capture_output=True,
        check=False,
        timeout=20,
    )
    assert process.returncode == -14


def test_a_worker_without_work_ends_with_its_pipe():
    done = subprocess.run([sys.executable, "-m", "services.reward.worker"], input=b"", timeout=20, check=False)
    assert done.returncode == 0


def test_a_scorer_that_cannot_be_loaded_is_reported():
    options = ScorerOptions(scorer="python:tests.no_such_module:f")
    hello = {"options": asdict(options), "preload": [options.scorer], "timeout_seconds": 1.0}
    process = subprocess.run(
        [sys.executable, "-m", "services.reward.worker"],
        input=encode_frame(hello),
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert process.returncode == 1
    assert "no_such_module" in json.loads(process.stdout[8:])["failed"]
