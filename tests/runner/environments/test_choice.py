import asyncio

import pytest

from runner.contract.bank import Task
from runner.contract.run_config import QuizEnvironment, SciKnowEvalEnvironment
from runner.contract.termination import Termination
from runner.environments import make_environment
from runner.environments.base import EnvironmentFailure


def task(**changes) -> Task:
    payload = {
        "instruction": "Reply with a letter.",
        "question": "Which metal?",
        "choices": [{"label": label, "text": text} for label, text in zip("ABCD", ("iron", "tin", "gold", "zinc"))],
        "answer_key": "C",
    }
    return Task(key="t", split="train", payload={**payload, **changes})


def play(task_: Task, reply: str | None, settings=None):
    async def episode():
        environment = make_environment(settings or QuizEnvironment())
        try:
            observation = await environment.start(task_, 7)
            step = await environment.step(reply) if reply is not None else None
            return observation, step, await environment.grade()
        finally:
            await environment.close()

    return asyncio.run(episode())


def test_the_prompt_is_instruction_then_question_blank_line_and_options():
    observation, step, _ = play(task(), "C")
    assert observation.messages == [
        {"role": "system", "content": "Reply with a letter."},
        {"role": "user", "content": "Which metal?\n\nA. iron\nB. tin\nC. gold\nD. zinc"},
    ]
    assert step.done and step.observation is None


def test_without_an_instruction_there_is_no_system_message():
    observation, _, _ = play(task(instruction=""), "C")
    assert [message["role"] for message in observation.messages] == ["user"]


@pytest.mark.parametrize(
    ("reply", "score", "parsed", "termination"), [("C", 1.0, True, None), ("A", 0.0, True, None), ("hm", 0.0, False, "parse_failed")]
)
def test_grades_the_extracted_letter(reply, score, parsed, termination):
    _, _, grade = play(task(), reply)
    assert (grade.score, grade.parsed, grade.termination) == (score, parsed, termination)
    assert grade.evidence["key"] == "C"
    assert grade.checks["parsed"] == float(parsed)


@pytest.mark.parametrize(
    ("reply", "parsed"), [("C", True), (" c. ", True), (" gold C", False), ("The answer is C", False), ("gold", False)]
)
def test_the_quiz_takes_a_letter_and_nothing_beside_it_where_sciknoweval_reads_the_whole_reply(reply, parsed):
    _, _, quiz = play(task(), reply)
    _, _, open_reply = play(task(), reply, SciKnowEvalEnvironment(bank="b"))
    assert (quiz.parsed, quiz.score) == (parsed, float(parsed))
    assert open_reply.parsed


def test_an_episode_without_a_reply_has_no_score():
    _, _, grade = play(task(), None)
    assert grade.score is None and grade.termination is Termination.VERIFIER_ERROR


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"answer_key": "E"}, "answer_key"),
        ({"question": ""}, "question"),
        ({"choices": [{"label": "A", "text": "x"}]}, "choices"),
        ({"choices": [{"label": "A", "text": "x"}, {"label": "A", "text": "y"}]}, "labels"),
    ],
)
def test_a_broken_task_ends_the_episode_with_its_reason(broken, named):
    with pytest.raises(EnvironmentFailure, match=named) as failure:
        play(task(**broken), "A")
    assert failure.value.termination is Termination.ENV_BAD_TASK


def test_forced_choice_offers_the_labels_and_can_hide_the_question():
    environment = make_environment(SciKnowEvalEnvironment())
    whole, blind = environment.forced_choice(task()), environment.forced_choice(task(), without_question=True)
    assert (whole.candidates, whole.key, whole.prefix) == (["A", "B", "C", "D"], 2, "")
    assert "Which metal?" in whole.messages[-1]["content"]
    assert blind.messages[-1]["content"] == "A. iron\nB. tin\nC. gold\nD. zinc"
    assert (blind.candidates, blind.key) == (whole.candidates, whole.key)
