"""Requests and answers of the reward service lose nothing on the wire."""

from services.common.convert.reward import (
    request_from_proto,
    request_to_proto,
    scorer_info_from_proto,
    scorer_info_to_proto,
)
from services.common.types import Message, RunId, ScoreRequest, ScorerInfo, ScoringSpec


def test_a_request_survives_the_wire():
    request = ScoreRequest(
        run_id=RunId("run"),
        trajectory_id="train/00000001/0/2/0",
        messages=(Message(role="system", content="s"), Message(role="user", content="\u00fc?")),
        completion="\U0001f600\u0000",
        scoring=ScoringSpec(answer="4", scorer="numeric", metadata_json='{"a": 1}'),
    )
    wire = request_to_proto(request, traceparent="00-ab-cd-01")
    assert wire.traceparent == "00-ab-cd-01"
    assert request_from_proto(wire) == request


def test_empty_metadata_is_an_empty_object():
    request = ScoreRequest(
        run_id=RunId("r"), trajectory_id="t", messages=(), completion="", scoring=ScoringSpec(metadata_json="")
    )
    assert request_from_proto(request_to_proto(request)).scoring.metadata_json == "{}"


def test_a_scorer_description_survives_the_wire():
    info = ScorerInfo(name="numeric", version="1", description="Compares numbers.")
    assert scorer_info_from_proto(scorer_info_to_proto(info)) == info
