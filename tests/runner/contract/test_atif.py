"""Trajectories: written as others read them, read in every version, refused where they break the format."""

import copy

import pytest

from runner.contract.atif import READABLE, AgentTurn, InvalidTrajectory, Trajectory, read_trajectory, write_trajectory

COMMAND = ("bash_command", {"keystrokes": "ls\n", "duration": 0.1})
TRAJECTORY = Trajectory(
    "s1",
    "terminal",
    "1",
    "model",
    "<prompt>",
    [
        AgentTurn("look", [COMMAND], "src", "", 1800, 60, 1_700_000_000.0),
        AgentTurn("two", [COMMAND, COMMAND], "both"),
        AgentTurn("done", [("mark_task_complete", {})], "bye"),
    ],
)


def test_what_is_written_is_read_back():
    document = write_trajectory(TRAJECTORY)
    read = read_trajectory(document)
    assert read.prompt == "<prompt>" and [turn.message for turn in read.turns] == ["look", "two", "done"]
    assert read.turns[0] == TRAJECTORY.turns[0] and (read.session, read.agent, read.model) == ("s1", "terminal", "model")


def test_the_document_has_the_published_form():
    document = write_trajectory(TRAJECTORY)
    first, second, third = document["steps"][1:]
    assert [step["step_id"] for step in document["steps"]] == [1, 2, 3, 4] and document["schema_version"] == "ATIF-v1.7"
    assert first["tool_calls"] == [{"tool_call_id": "call_1_1", "function_name": "bash_command", "arguments": COMMAND[1]}]
    assert first["observation"]["results"] == [{"source_call_id": "call_1_1", "content": "src"}]
    assert first["metrics"] == {"prompt_tokens": 1800, "completion_tokens": 60}
    assert second["observation"]["results"][0]["source_call_id"] is None, "several calls share one screen"
    assert third["tool_calls"][0]["tool_call_id"] == "call_3_task_complete"
    assert document["final_metrics"] == {"total_prompt_tokens": 1800, "total_completion_tokens": 60, "total_steps": 4}


@pytest.mark.parametrize("version", READABLE)
def test_every_version_is_read(version):
    assert len(read_trajectory({**write_trajectory(TRAJECTORY), "schema_version": version}).turns) == 3


def test_copied_context_never_counts_as_the_agents_own():
    document = write_trajectory(TRAJECTORY)
    document["steps"][1]["is_copied_context"] = True
    assert [turn.message for turn in read_trajectory(document).turns] == ["two", "done"]


def test_a_message_may_be_in_parts():
    document = write_trajectory(TRAJECTORY)
    document["steps"][0]["message"] = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert read_trajectory(document).prompt == "a\n\nb"


BROKEN = [
    (lambda d: d.update(schema_version="ATIF-v2.0"), "schema_version"),
    (lambda d: d.update(steps="none"), "steps"),
    (lambda d: d["steps"][1].update(step_id=7), r"steps\[1\]\.step_id"),
    (lambda d: d["steps"][1].update(source="tool"), r"steps\[1\]\.source"),
    (lambda d: d["steps"][0].update(tool_calls=[]), r"steps\[0\]\.tool_calls"),
    (lambda d: d["steps"][1]["observation"]["results"][0].update(source_call_id="call_9"), "call_9"),
]


@pytest.mark.parametrize(("break_it", "told"), BROKEN)
def test_a_broken_document_names_the_place(break_it, told):
    document = copy.deepcopy(write_trajectory(TRAJECTORY))
    break_it(document)
    with pytest.raises(InvalidTrajectory, match=told):
        read_trajectory(document)
