"""Replies in every state of disrepair, and screens cut to size."""

import json

import pytest

from runner.agents.base import Action
from runner.agents.terminal_protocol import ask_again, fetches, parse_reply, truncate

GOOD = {"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\n", "duration": 0.1}]}


def said(**changes):
    return json.dumps({**GOOD, **changes})


def one_warning(text, words):
    parsed = parse_reply(text)
    assert not parsed.errors and len(parsed.warnings) == 1 and words in parsed.warnings[0], parsed
    return parsed


def test_a_clean_reply_has_nothing_to_be_said_about():
    parsed = parse_reply(said(task_complete=True))
    assert (parsed.errors, parsed.warnings, parsed.complete) == ([], [], True)
    assert [(command.keystrokes, command.seconds) for command in parsed.commands] == [("ls\n", 0.1)]


@pytest.mark.parametrize("text", ["", "I will list the files.", "[1, 2]"])
def test_without_an_object_nothing_can_be_done(text):
    parsed = parse_reply(text)
    assert parsed.errors == ["no JSON object was found"] and not parsed.commands
    assert "no JSON object" in ask_again(parsed) and "Nothing was executed" in ask_again(parsed)


@pytest.mark.parametrize("name", ["analysis", "plan", "commands"])
def test_a_missing_field_is_named(name):
    text = json.dumps({key: value for key, value in GOOD.items() if key != name})
    assert parse_reply(text).errors == [f"the field {name!r} is missing"]


def test_text_around_the_object_is_a_warning():
    one_warning("Sure!\n" + said(), "before")
    one_warning(said() + "\nDone.", "after")


def test_braces_inside_strings_do_not_count():
    parsed = parse_reply(said(commands=[{"keystrokes": 'echo "}{\\"" {\n', "duration": 1}]))
    assert not parsed.warnings and parsed.commands[0].keystrokes == 'echo "}{\\"" {\n'


@pytest.mark.parametrize("missing", ["}", "]}", "}]}"])
def test_missing_closing_brackets_are_added(missing):
    text = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n", "duration": 1}]}'
    parsed = one_warning(text[: -len(missing)], "missing")
    assert parsed.commands[0].keystrokes == "ls\n"


def test_the_first_object_that_is_json_is_taken():
    parsed = one_warning("{not json} then " + said(), "repaired")
    assert parsed.commands[0].keystrokes == "ls\n"


def test_what_cannot_be_repaired_is_an_error_with_the_reason():
    assert "not valid JSON" in parse_reply("{'analysis': 1}").errors[0]


def test_thinking_is_not_the_reply():
    parsed = parse_reply('<think>perhaps {"analysis": "wrong"}</think>' + said())
    assert not parsed.warnings and parsed.commands[0].keystrokes == "ls\n"
    assert parse_reply("wrong {</think>" + said()).commands
    assert parse_reply('<think>never closed {"analysis": 1}').errors == ["no JSON object was found"]


@pytest.mark.parametrize(
    ("duration", "seconds", "words"),
    [
        (None, 1.0, "no duration"),
        ("long", 1.0, "number"),
        (True, 1.0, "number"),
        (1e999, 1.0, "number"),
        (90, 60.0, ""),
        (-1, 0.0, ""),
        (2, 2.0, ""),
    ],
)
def test_a_duration_is_a_number_of_seconds_up_to_a_minute(duration, seconds, words):
    command = {"keystrokes": "ls\n"} | ({} if duration is None else {"duration": duration})
    parsed = parse_reply(said(commands=[command]))
    assert parsed.commands[0].seconds == seconds and not parsed.errors
    assert words in "".join(parsed.warnings) and bool(parsed.warnings) == bool(words)


def test_commands_that_are_none_are_errors():
    assert "must be a list" in parse_reply(said(commands="ls")).errors[0]
    assert "must be an object" in parse_reply(said(commands=["ls"])).errors[0]
    assert "needs keystrokes" in parse_reply(said(commands=[{"duration": 1}])).errors[0]
    assert "needs keystrokes" in parse_reply(said(commands=[{"keystrokes": 3}])).errors[0]


def test_lesser_faults_are_warnings():
    one_warning(said(commands=[{"keystrokes": "ls\n", "duration": 1, "mode": "x"}]), "unknown fields: mode")
    one_warning(said(commands=[{"keystrokes": "ls", "duration": 1}, {"keystrokes": "\n", "duration": 1}]), "same line")
    one_warning(json.dumps({"plan": "p", "analysis": "a", "commands": []}), "order")
    one_warning(said(analysis=1), "'analysis' should be text")
    assert parse_reply(said(task_complete="yes")).complete is False


def test_who_is_done_needs_no_commands():
    parsed = parse_reply(said(commands="none", task_complete=True))
    assert parsed.complete and not parsed.errors and not parsed.commands and "must be a list" in "".join(parsed.warnings)


# ---------------------------------------------------------------- 12.6
@pytest.mark.parametrize("letter", ["x", "ü", "𝛁"])
def test_a_long_screen_keeps_head_and_tail_within_the_cap(letter):
    text = "HEAD" + letter * (30_000 // len(letter.encode())) + "TAIL"
    cut = truncate(text, 4096)
    assert len(cut.encode()) <= 4096 + 200 and cut.startswith("HEAD") and cut.endswith("TAIL")
    assert f"{len(text.encode()) - 4096} bytes left out" in cut and "4096 are shown" in cut


def test_a_screen_at_the_cap_is_left_alone():
    assert truncate("x" * 100, 100) == "x" * 100


def test_fetching_the_upstream_code_is_noticed():
    typed = [
        Action("", [("bash_command", {"keystrokes": "cd /tmp && git clone https://example.org/heat\n"})]),
        Action("", [("bash_command", {"keystrokes": "make\n"})]),
    ]
    assert fetches(typed) == ["git clone https://example.org/heat"]
