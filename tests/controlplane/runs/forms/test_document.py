"""POST → document, and the moves of list items."""

import pytest
from django.http import QueryDict

from controlplane.runs.forms import add_item, build_form, move_item, read_post, remove_item
from runner.contract.parse import FieldError

BASE = {"/name": ["x"], "/stages/0/type": ["grpo"]}


def document(**values):
    return read_post({**BASE, **values}).document


def test_a_query_dict_is_read_and_foreign_names_are_ignored():
    values = QueryDict("csrfmiddlewaretoken=1&%2Fname=x&%2Fstages%2F0%2Ftype=sft&%2Fstages%2F0%2Fsteps=3")
    assert read_post(values).document == {"name": "x", "stages": [{"type": "sft", "steps": 3}]}


def test_blank_is_absent():
    assert document(**{"/seed": [""], "/experiment": ["  "], "/tags": ["\r\n \r\n"]}) == {"name": "x", "stages": [{"type": "grpo"}]}


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("/seed", "7", 7),
        ("/seed", " 7 ", 7),
        ("/priority", "-3", -3),
        ("/project", "a", "a"),
        ("/name", " kept ", " kept "),
    ],
)
def test_a_text_becomes_its_typed_value(name, text, value):
    read = document(**{name: [text]})[name[1:]]
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize("text, value", [("1e-4", 1e-4), (".5", 0.5), ("1", 1.0), ("1.", 1.0), ("2.5E-3", 2.5e-3)])
def test_numbers_are_read_in_every_usual_spelling(text, value):
    stage = document(**{"/stages/0/optimizer/learning_rate": [text]})["stages"][0]
    assert stage["optimizer"]["learning_rate"] == value


@pytest.mark.parametrize(
    "pointer, text, words",
    [
        ("/name", "a\0b", "null character"),
        ("/seed", "1.5", "whole number"),
        ("/seed", "1_000", "whole number"),
        ("/seed", "٣", "whole number"),
        ("/stages/0/optimizer/learning_rate", "0,5", "point"),
        ("/stages/0/optimizer/learning_rate", "nan", "number"),
        ("/stages/0/optimizer/learning_rate", "fast", "number"),
        ("/stages/0/train_truncated", "maybe", "true or false"),
    ],
)
def test_what_cannot_be_converted_is_an_error_that_keeps_the_typed_text(pointer, text, words):
    posted = read_post({**BASE, pointer: [text]})
    config, errors = posted.check()
    assert config is None
    assert [(error.pointer, error.value) for error in errors] == [(pointer, text)]
    assert words in errors[0].message
    field = build_form(posted.document, errors, posted.typed).field(pointer)
    assert field.text == ("" if field.kind == "bool" else text) or field.kind == "bool"
    assert len(field.errors) == 1


def test_a_number_too_large_for_a_float_is_refused_by_the_contract():
    config, errors = read_post({**BASE, "/stages/0/optimizer/learning_rate": ["1e999"]}).check()
    assert config is None
    assert [error.pointer for error in errors] == ["/stages/0/optimizer/learning_rate"]


def test_all_errors_come_at_once_each_at_its_field():
    values = {
        **BASE,
        "/name": [""],
        "/seed": ["x"],
        "/stages/0/batch_size": ["10"],
        "/stages/0/group_size": ["4"],
        "/stages/0/loss/type": ["masked"],
    }
    posted = read_post({**values, "/stages/0/loss/mask_low": ["7"]})
    config, errors = posted.check()
    form = build_form(posted.document, errors, posted.typed)
    assert {field.pointer for field in form.walk() if field.errors} == {"/name", "/seed", "/stages/0/group_size", "/stages/0/loss/mask_low"}
    assert form.errors == ()
    assert "10 is not a multiple of group_size 4" in form.field("/stages/0/group_size").errors[0]


def test_a_checkbox_and_its_hidden_twin():
    assert document(**{"/stages/0/train_truncated": ["false"]})["stages"][0]["train_truncated"] is False
    assert document(**{"/stages/0/train_truncated": ["false", "true"]})["stages"][0]["train_truncated"] is True


def test_a_list_takes_lines_and_repeated_inputs():
    assert document(**{"/tags": ["a\r\nb\n", "c"]})["tags"] == ["a", "b", "c"]


def test_a_union_of_an_unknown_type_is_an_error_at_the_union():
    posted = read_post({**BASE, "/stages/0/loss/type": ["square"]})
    assert posted.errors == (FieldError("/stages/0/loss", "unknown type; choose one of clipped, masked", "square"),)
    assert build_form(posted.document, posted.errors, posted.typed).field("/stages/0/loss").errors


def test_a_form_without_stages_is_told_so_at_the_stages():
    posted = read_post({"/name": ["x"]})
    config, errors = posted.check()
    assert build_form(posted.document, errors, posted.typed).field("/stages").errors


# ---------------------------------------------------------------- items
STAGES = {
    **{"/name": ["x"], "/stages/0/type": ["sft"], "/stages/0/steps": ["one"]},
    **{"/stages/1/type": ["grpo"], "/stages/1/steps": ["2"], "/stages/2/type": ["sft"], "/stages/2/steps": ["3"]},
}


def steps(values):
    return [values[f"/stages/{index}/steps"][0] for index in range(9) if f"/stages/{index}/steps" in values]


def test_items_move_with_everything_typed_in_them():
    assert steps(move_item(STAGES, "/stages", 2, -1)) == ["one", "3", "2"]
    assert steps(move_item(STAGES, "/stages", 0, +1)) == ["2", "one", "3"]
    assert steps(move_item(STAGES, "/stages", 0, -1)) == ["one", "2", "3"]
    assert move_item(STAGES, "/stages", 0, 1)["/name"] == ["x"]


def test_removing_an_item_closes_the_gap():
    values = remove_item(STAGES, "/stages", 1)
    assert steps(values) == ["one", "3"]
    assert [stage["type"] for stage in read_post(values).document["stages"]] == ["sft", "sft"]


def test_an_added_item_is_last_and_blank():
    values = add_item(STAGES, "/stages", "grpo")
    assert steps(values) == ["one", "2", "3"]
    assert read_post(values).document["stages"][3] == {"type": "grpo"}


def test_gaps_in_posted_indices_are_closed():
    posted = read_post({"/name": ["x"], "/stages/3/type": ["sft"], "/stages/7/type": ["grpo"], "/stages/7/steps": ["many"]})
    assert [stage["type"] for stage in posted.document["stages"]] == ["sft", "grpo"]
    assert posted.errors[0].pointer == "/stages/1/steps"
    assert build_form(posted.document, posted.errors, posted.typed).field("/stages/1/steps").text == "many"


@pytest.mark.parametrize(
    "change",
    [
        lambda: move_item(STAGES, "/stages", 7, +1),
        lambda: remove_item(STAGES, "/stages", 7),
        lambda: add_item(STAGES, "/stages", "ppo"),
    ],
)
def test_an_item_or_a_type_that_there_is_not_is_a_key_error(change):
    with pytest.raises(KeyError):
        change()
