import json

import pytest

from services.common.errors import ConfigError
from services.trainer.dataset import RowOrder, load_data, questions_and_answers
from tests.unit.trainer.fakes import make_config

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def write(tmp_path, *lines):
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def row(prompt="1 + 1 =", answer="2", **more):
    return json.dumps({"prompt": prompt, "answer": answer, **more})


def load(tmp_path, **sections):
    return load_data(make_config(tmp_path, **sections), folder=tmp_path)


def test_the_order_is_a_permutation_per_epoch_and_depends_on_the_seed_alone():
    order, again, other = (RowOrder(50, seed=seed, shuffle=True) for seed in (1, 1, 2))

    first = [order.row(sequence) for sequence in range(50)]
    second = [order.row(sequence) for sequence in range(50, 100)]

    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert [again.row(sequence) for sequence in range(50)] == first
    assert [other.row(sequence) for sequence in range(50)] != first


def test_a_cursor_may_jump_since_a_row_follows_from_its_number_alone():
    walked, jumped = RowOrder(7, seed=3, shuffle=True), RowOrder(7, seed=3, shuffle=True)

    expected = [walked.row(sequence) for sequence in range(40)]

    assert [jumped.row(sequence) for sequence in (39, 20, 0)] == [expected[39], expected[20], expected[0]]


def test_without_shuffling_rows_come_as_they_are():
    assert [RowOrder(3, seed=1, shuffle=False).row(sequence) for sequence in range(5)] == [0, 1, 2, 0, 1]


def test_a_file_gives_prompt_answer_and_the_other_fields_as_metadata(tmp_path):
    write(tmp_path, row(level=3), "", row("2 + 2 =", 4))

    data = load(tmp_path)

    assert [(item.question, item.answer) for item in data.train] == [("1 + 1 =", "2"), ("2 + 2 =", "4")]
    assert json.loads(data.train[0].metadata_json) == {"level": 3}
    assert data.train[1].origin.endswith("data.jsonl line 3")
    assert questions_and_answers(data.train)[0] == ("1 + 1 =", "2")


def test_a_prompt_may_be_a_list_of_messages_and_gets_the_system_prompt(tmp_path):
    write(tmp_path, row([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]))

    messages = load(tmp_path, data={"system_prompt": "Be short."}).train[0].messages

    assert [message.role for message in messages] == ["system", "user", "assistant"]


def test_an_empty_answer_field_says_that_rows_have_no_answers(tmp_path):
    write(tmp_path, json.dumps({"prompt": "hi"}))

    assert load(tmp_path, data={"answer_field": ""}).train[0].answer == ""


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{not json", "line 2: is not JSON"),
        ("[1]", "line 2: holds a JSON list"),
        ('{"answer": "2"}', "line 2: has no field 'prompt'.*it has answer"),
        ('{"prompt": "  ", "answer": "2"}', "line 2: 'prompt' is empty"),
        ('{"prompt": [], "answer": "2"}', "line 2: 'prompt' is empty"),
        ('{"prompt": 7, "answer": "2"}', "line 2: 'prompt' must be a text or a list"),
        ('{"prompt": [{"role": "robot", "content": "x"}], "answer": "2"}', "line 2: .*role 'robot'"),
        ('{"prompt": "x"}', "line 2: has no field 'answer'"),
        ('{"prompt": "x", "answer": null}', "line 2: has no field 'answer'"),
    ],
)
def test_a_bad_line_ends_in_one_sentence_with_file_and_line(tmp_path, line, sentence):
    write(tmp_path, row(), line)

    with pytest.raises(ConfigError, match=rf"data\.jsonl {sentence}") as caught:
        load(tmp_path)
    assert "\n" not in caught.value.message


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path):
    (tmp_path / "data.jsonl").write_bytes(row().encode() + b"\n\xff\xfe\n")

    with pytest.raises(ConfigError, match="line 2: is not UTF-8"):
        load(tmp_path)


def test_a_missing_an_empty_and_an_unknown_source_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'data\.jsonl' does not exist in .* nor in the working folder"):
        load(tmp_path)
    write(tmp_path, "", " ")
    with pytest.raises(ConfigError, match="holds no rows"):
        load(tmp_path)
    with pytest.raises(ConfigError, match=r"data source 'sums\.csv' is unknown"):
        load(tmp_path, data={"source": "sums.csv"})


def test_an_unknown_generated_dataset_names_the_nearest_one(tmp_path):
    with pytest.raises(ConfigError, match="has no dataset 'chainsum'; did you mean 'chain_sum'"):
        load(tmp_path, data={"source": "reasoning_gym:chainsum"})


@pytest.mark.parametrize("arguments", [{"terms": 2}, {"min_terms": 5, "max_terms": 2}])
def test_wrong_arguments_of_a_generated_dataset_are_refused(tmp_path, arguments):
    with pytest.raises(ConfigError, match=r"reasoning_gym:chain_sum refuses data\.args"):
        load(tmp_path, data={"source": "reasoning_gym:chain_sum", "args": arguments})


def test_generated_rows_carry_what_their_scorer_needs(tmp_path):
    data = load(tmp_path, data={"source": "reasoning_gym:chain_sum", "args": SUMS, "size": 5})

    entry = json.loads(data.train[0].metadata_json)
    assert entry["metadata"]["source_dataset"] == "chain_sum"
    assert (entry["question"], entry["answer"]) == (data.train[0].question, data.train[0].answer)


def test_held_out_questions_of_a_generated_source_are_not_trained_on(tmp_path):
    sections = {"data": {"source": "reasoning_gym:chain_sum", "args": SUMS, "size": 300}}

    data = load(tmp_path, validation={"size": 30}, **sections)
    overlapping = load(tmp_path, validation={"size": 30, "disjoint": False}, **sections)

    held_out = {item.question for item in data.validation}
    assert len(data.validation) == 30
    assert not held_out & {item.question for item in data.train}
    assert data.num_excluded == 300 - len(data.train) > 0
    assert held_out & {item.question for item in overlapping.train}


def test_a_space_of_questions_that_is_held_out_as_a_whole_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no other; lower validation\.size"):
        load(
            tmp_path,
            data={"source": "reasoning_gym:chain_sum", "args": SUMS, "size": 5, "seed_offset": 0},
            validation={"size": 2000},
        )


def test_held_out_rows_of_a_file_are_taken_out_of_training(tmp_path):
    write(tmp_path, *[row(f"{index} + 1 =", str(index + 1)) for index in range(10)])

    data = load(tmp_path, validation={"size": 3})

    assert (len(data.train), len(data.validation)) == (7, 3)
    assert not {item.question for item in data.train} & {item.question for item in data.validation}
    with pytest.raises(ConfigError, match="nothing would be left to train on"):
        load(tmp_path, validation={"size": 10})


def test_a_file_that_repeats_one_question_cannot_be_split(tmp_path):
    write(tmp_path, row(), row())

    with pytest.raises(ConfigError, match="repeats a held-out question"):
        load(tmp_path, validation={"size": 1})
