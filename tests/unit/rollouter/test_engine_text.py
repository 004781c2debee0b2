import numpy as np
import pytest

from services.rollouter.engine.text import StopStrings, TextStream, cut_at_stop


def decode(ids):
    return bytes(ids).decode(errors="replace")


def encode(text):
    return list(text.encode())


def first_stop(text, stop):
    stops = StopStrings(decode, stop, {})
    ids = np.array(encode(text), dtype=np.int32)
    return next((count for count in range(1, len(ids) + 1) if stops.ends_with(ids[:count])), None)


@pytest.mark.parametrize(
    ("text", "stop", "count"),
    [
        ("one END two", ("END",), 7),
        ("a\n\nb", ("\n\n",), 3),
        ("no stop here", ("END",), None),
        ("x grün y", ("grün",), 7),
        ("abcabd", ("zzz", "abd"), 6),
    ],
)
def test_a_stop_string_is_noticed_with_the_token_that_completes_it(text, stop, count):
    assert first_stop(text, stop) == count


def test_a_token_of_many_characters_may_hide_the_end_of_a_stop_string():
    words = ["one ", "EN", "D and more"]
    stops = StopStrings(lambda ids: "".join(words[token] for token in ids), ("END",), {})
    assert [stops.ends_with(np.array([0, 1, 2][:count])) for count in (1, 2, 3)] == [False, False, True]


def test_text_is_cut_before_the_first_of_several_stop_strings():
    assert cut_at_stop("one two three", ("three", "two")) == "one "
    assert cut_at_stop("one", ("two",)) == "one"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("stop", [(), ("END",)])
def test_streamed_pieces_joined_are_the_final_text(size, stop):
    text = "Grüße, 日本 and more"
    final = cut_at_stop(text + "END rest", stop) if stop else text
    stream = TextStream(decode, stop)
    ids = encode(text)
    pieces = [stream.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    assert "".join([*pieces, stream.finish(final)]) == final
    assert all("\ufffd" not in piece for piece in pieces)


def test_what_may_begin_a_stop_string_is_held_back():
    stream = TextStream(decode, ("END",))
    assert stream.push(encode("abcEN")) == "abc"
    assert stream.finish("abc") == ""
