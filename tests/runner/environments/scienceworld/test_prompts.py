import pytest

from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.environments.scienceworld.prompts import Told, following_prompt, is_blocked, read_action, reply, turn_prompt

TOLD = Told(
    "Your task is to boil water.",
    "The door is already open.",
    "This room is called the hallway.",
    "In your inventory, you see:\n\tan orange",
    ["go OBJ", "reset task"],
    ["agent", "picture"],
    [("obs 0", "act 0"), ("obs 1", "act 1"), ("obs 2", "act 2")],
    3,
)


@pytest.mark.parametrize(
    ("said", "text", "format_ok", "source"),
    [
        ("<think>a</think><action>Go to Kitchen</action>", "go to kitchen", True, "tag"),
        ("<think>a</think><action> open door.\n</action> <action>wait</action>", "open door", True, "tag"),
        ("<action>wait</action>", "wait", False, "tag"),
        ("<think>门</think><action>wait</action>", "wait", False, "tag"),
        ("I would rather say that we pick up the red apple", "that we pick up the red apple", False, "fallback"),
        ("<think>a</think><action></action>", "", False, "tag"),
        (f"<think>a</think><action>{'look ' * 60}</action>", "", False, "tag"),
        ("", "", False, "fallback"),
    ],
)
def test_a_reply_is_read_by_its_first_tags_else_by_its_end(said, text, format_ok, source):
    action = read_action(said)
    assert (action.text, action.format_ok, action.source) == (text, format_ok, source)


def test_what_a_student_would_have_written_reads_back():
    action = read_action(reply("focus on red box", "I look for it."))
    assert (action.text, action.format_ok) == ("focus on red box", True)


@pytest.mark.parametrize("said", ["reset task", "RESET  TASK", "reset task.", "help", "objects", "exit", "quit"])
def test_what_leaves_the_task_is_blocked_however_it_is_spelled(said):
    assert is_blocked(read_action(reply(said, "x")).text) and not is_blocked("focus on task")


def test_a_prompt_tells_the_task_the_last_steps_by_their_number_the_state_and_the_way_to_answer():
    text = turn_prompt(TOLD, Settings(history_length=2))
    assert "You have taken 3 steps. The last 2:\nStep 2: you saw: obs 1 — you did: act 1\nStep 3: you saw: obs 2 — you did: act 2" in text
    assert "Observation: The door is already open.\nThis room is called the hallway.\nIn your inventory" in text
    assert "act 0" not in text and "reset task" not in text and "Objects in sight: agent, picture" in text and text.endswith("</action>")


def test_hints_and_history_can_be_left_out():
    text = turn_prompt(TOLD, Settings(history_length=0, hints="none"))
    assert "You have taken" not in text and "Objects" not in text and "Commands" not in text
    assert "Commands" not in turn_prompt(TOLD, Settings(hints="objects"))


def test_a_conversation_that_grows_is_told_only_what_is_new():
    text = following_prompt(TOLD, Settings())
    assert TOLD.task not in text and "You have taken" not in text and "The door is already open." in text
