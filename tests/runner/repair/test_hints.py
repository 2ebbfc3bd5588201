"""Hint texts: fixed wording, at most 400 characters, and nothing at L2 that only L1 may tell."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.repair.hints import HintTooLong, Location, common_folder, hint_texts, location_of, without_lines


def provenance(source="inject", note="flipped the sign of the flux term", **meta):
    return {"candidate": {"source": source, "note": note, "meta": {"file": "src/heat.f90", "line": 12} | meta}}


def test_the_three_levels():
    texts = hint_texts(location_of(provenance()))
    assert texts == {
        "L1": "## Location hint\nOne edit was made, in:\n    src/heat.f90, line 12\n"
        "What changed: flipped the sign of the flux term. Other files are untouched.",
        "L2": "## Location hint\nOne edit was made, in:\n    src/heat.f90\nWhat changed: flipped the sign of the flux term. Other files are untouched.",
    }
    assert "L3" not in texts


def test_without_a_line_l1_says_what_l2_says():
    texts = hint_texts(location_of(provenance(line=None)))
    assert texts["L1"] == texts["L2"] and "line" not in texts["L1"]


def test_a_recorded_line_wins_over_a_found_one():
    assert location_of(provenance(), 99).line == 12
    assert location_of(provenance(line=None), 99).line == 99


@pytest.mark.parametrize("source", ["inject", "semantic", "semantic-gr-sol"])
def test_which_tasks_are_hinted(source):
    assert hint_texts(location_of(provenance(source)))


@pytest.mark.parametrize(
    "document",
    [
        provenance("excise"),
        provenance("semantics"),
        provenance(note=""),
        provenance(file=None),
        {},
        {"candidate": []},
        {"candidate": {"meta": 3}},
    ],
)
def test_which_tasks_are_not(document):
    assert hint_texts(location_of(document)) == {}


def test_several_files_are_listed_without_a_line_and_outrank_one():
    texts = hint_texts(location_of(provenance(files=["src/a.f90", "src/b.f90"])))
    assert "    src/a.f90\n    src/b.f90\n" in texts["L1"] and "Edits were made" in texts["L1"]
    assert "line" not in texts["L1"] and "heat.f90" not in texts["L1"]


def test_a_long_list_names_the_folder_they_share():
    files = [f"model/physics/radiation/very_long_file_name_{number}.f90" for number in range(9)]
    text = hint_texts(location_of(provenance(files=files)))["L1"]
    assert "    model/physics/radiation/ (9 files)\n" in text and len(text) <= 400


@pytest.mark.parametrize(
    "files, folder", [(("a/b/c", "a/b/d"), "a/b"), (("a/b/c", "a/e"), "a"), (("a", "b/c"), "."), (("a/b", "ab/c"), ".")]
)
def test_common_folder(files, folder):
    assert common_folder(files) == folder


def test_401_characters_are_refused_and_400_are_not():
    room = 400 - len(hint_texts(Location(("a.c",), "x"))["L1"]) + 1
    assert len(hint_texts(Location(("a.c",), "x" * room))["L1"]) == 400
    with pytest.raises(HintTooLong, match="401 characters"):
        hint_texts(Location(("a.c",), "x" * (room + 1)))


@pytest.mark.parametrize(
    "note, left",
    [
        ("flipped the sign at line 12", "flipped the sign"),
        ("flipped the sign on lines 12-14 of the loop", "flipped the sign of the loop"),
        ("see heat.f90:12 for the flux", "see heat.f90 for the flux"),
        ("sign of the flux (line 12)", "sign of the flux"),
        ("sign of the flux (L12)", "sign of the flux"),
        ("Line 12: dropped the term", ": dropped the term"),
        ("the time line is straight", "the time line is straight"),
        ("the L2 norm uses 3 points", "the L2 norm uses 3 points"),
    ],
)
def test_line_numbers_leave_the_note(note, left):
    assert without_lines(note) == left


@given(
    st.text(max_size=60),
    st.integers(10, 99999),
    st.sampled_from(["line {}", "lines {}", "at line {}", "L{}", "a.f90:{}", "Line no. {}"]),
    st.text(max_size=60),
)
def test_l2_never_tells_the_line(before, line, form, after):
    note = f"{before} {form.format(line)} {after}"
    text = hint_texts(Location(("src/heat.f90",), note, line)).get("L2", "") if len(note) < 200 else ""
    assert not re.search(rf"(?i)\b(?:lines?\s+(?:no\.?\s*)?|L|f90:){line}\b", text)
