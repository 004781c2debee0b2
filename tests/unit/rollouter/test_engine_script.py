import json

import pytest

from services.common.errors import ConfigError
from services.common.types import EndReason, SamplingParams
from services.rollouter.engine.port import GenerationRequest
from services.rollouter.engine.script import END_ID, Play, Script, ScriptRule, load_script


def play(script, *, prompt="user: what is 1 plus 2", seed=0, limit=100, began=0.0, **sampling):
    params = SamplingParams(**{"max_new_tokens": limit, **sampling})
    request = GenerationRequest(request_id="a", prompt_ids=tuple(prompt.encode()), sampling=params, seed=seed)
    return Play(script, request, limit=limit, began=began, version=0)


SCRIPT = Script(
    rules=(ScriptRule(match="plus", replies=("3", "three")), ScriptRule(match="^user: grüß", replies=("grün",))),
    default_replies=("who knows",),
)


def test_the_first_rule_that_matches_the_prompt_answers():
    assert {play(SCRIPT, seed=seed).text for seed in range(20)} == {"3", "three"}
    assert play(SCRIPT, prompt="user: grüß dich").text == "grün"
    assert play(SCRIPT, prompt="hello").text == "who knows"


def test_an_answer_ends_with_the_end_token():
    played = play(SCRIPT, prompt="hello")
    assert bytes(played.tokens[:-1]) == b"who knows"
    assert played.tokens[-1] == END_ID
    assert played.end_reason is EndReason.STOP


def test_the_same_seed_gives_the_same_answer():
    assert [play(SCRIPT, seed=seed).text for seed in range(9)] == [play(SCRIPT, seed=seed).text for seed in range(9)]


def test_the_token_limit_cuts_an_answer():
    played = play(SCRIPT, prompt="hello", limit=3)
    assert (played.text, len(played.tokens), played.end_reason) == ("who", 3, EndReason.LENGTH)


def test_a_stop_string_ends_the_tokens_and_leaves_the_text():
    played = play(SCRIPT, prompt="hello", stop=("kn",))
    assert (played.text, bytes(played.tokens), played.end_reason) == ("who ", b"who kn", EndReason.STOP)


def test_a_stop_token_ends_an_answer():
    played = play(SCRIPT, prompt="hello", stop_token_ids=(ord("o"),))
    assert bytes(played.tokens) == b"who"


def test_lengths_are_drawn_from_their_range():
    script = Script(rules=(ScriptRule(replies=("7",), num_tokens=(5, 9)),))
    lengths = [len(play(script, seed=seed).tokens) for seed in range(300)]
    assert set(lengths) == {5, 6, 7, 8, 9}
    assert all(play(script, seed=seed).text.strip() == "7" for seed in range(9))


def test_time_reveals_tokens():
    played = play(Script(seconds_per_token=0.5, prefill_seconds=2.0, default_replies=("abc",)), began=10.0)
    assert played.end_time == 14.0
    assert [played.num_due(now) for now in (0.0, 12.4, 12.5, 13.9, 14.0, 99.0)] == [0, 0, 1, 3, 4, 4]


def test_chunks_joined_are_the_text_even_where_characters_are_cut():
    played = play(SCRIPT, prompt="user: grüß dich")
    chunks = [played.chunk(start, start + 1) for start in range(len(played.tokens))]
    assert "".join(chunk.text for chunk in chunks) == "grün"
    assert [chunk.end_reason for chunk in chunks] == [None] * 5 + [EndReason.STOP]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'seconds_per_token = 0.05\n[[rules]]\nmatch = "x"\nreplies = ["y"]\nnum_tokens = [1, 4]\n'),
        (
            "a.json",
            json.dumps({"seconds_per_token": 0.05, "rules": [{"match": "x", "replies": ["y"], "num_tokens": [1, 4]}]}),
        ),
    ],
)
def test_scripts_are_toml_or_json(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    script = load_script(str(tmp_path / name))
    assert script == Script(seconds_per_token=0.05, rules=(ScriptRule(match="x", replies=("y",), num_tokens=(1, 4)),))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seconds_per_token = -1", "seconds_per_token"),
        ("tempo = 1", "tempo"),
        ('[[rules]]\nmatch = "("\nreplies = ["y"]', "no regular expression"),
        ('[[rules]]\nreplies = ["y"]\nnum_tokens = [4, 1]', "num_tokens"),
        ("[[rules]]\nreplies = []", "replies"),
        ("not toml", "engine.script"),
    ],
)
def test_a_wrong_script_says_where_it_is_wrong(text, says, tmp_path):
    path = tmp_path / "script.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_script(str(path))


def test_a_missing_script_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        load_script(str(tmp_path / "missing.toml"))
