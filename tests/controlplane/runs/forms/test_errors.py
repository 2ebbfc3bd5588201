"""Errors find the field that can cure them."""

import pytest

from controlplane.runs.forms import build_form, place
from runner.contract.parse import FieldError, InvalidDocument, parse

DOCUMENT = {"name": "x", "stages": [{"type": "grpo"}], "tags": ["a"]}
POINTERS = {field.pointer for field in build_form(DOCUMENT).walk()}


@pytest.mark.parametrize(
    "pointer, at",
    [
        ("/name", "/name"),
        ("/stages/0/group_size", "/stages/0/group_size"),
        ("/stages/0/grpo/group_size", "/stages/0/group_size"),
        ("/stages/0/grpo/loss/clipped/clip_low", "/stages/0/loss/clip_low"),
        ("/tags/0", "/tags"),
        ("/stages", "/stages"),
        ("/stages/5", "/stages"),
        ("/environment/type", "/environment"),
        ("/schema_version", None),
        ("/colour", None),
        ("/stages/0/colour", None),
        ("", None),
    ],
)
def test_an_error_is_shown_at(pointer, at):
    placed, rest = place([FieldError(pointer, "wrong")], POINTERS)
    assert placed == ({at: ["wrong"]} if at else {})
    assert [error.pointer for error in rest] == ([] if at else [pointer])


def test_every_error_of_a_bad_document_is_shown_somewhere():
    document = {
        **DOCUMENT,
        "colour": 1,
        "tags": ["a", 2],
        "stages": [{"type": "grpo", "group_size": 7, "optimizer": {"beta1": 2.0, "x": 1}}],
    }
    with pytest.raises(InvalidDocument) as caught:
        parse(document)
    form = build_form(document, caught.value.errors)
    assert form.error_count == len(caught.value.errors) == 5
    assert {error.pointer for error in form.errors} == {"/colour", "/stages/0/optimizer/x"}
    assert next(section for section in form.sections if section.title == "Method").has_errors
