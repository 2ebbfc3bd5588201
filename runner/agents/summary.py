"""Going on when the context is full: the history becomes a summary that the model wrote and questioned itself.

1. With the whole history, summarise the work so far. Where that does not fit, the newest exchanges are left out.
2. With a fresh context, task, summary and screen: ask at least five questions about what the summary does not tell.
3. With the whole history again: answer them.
What goes on is the first message, the second step's prompt and reply, and a message with the answers. Where the model cannot be asked
in full, a short summary, or the task and the screen alone, must do.
"""

from collections.abc import Sequence

from runner.agents.base import Ask, user
from runner.environments.base import Message

SCREEN_TAIL = 1000

SUMMARISE = (
    "Your context is nearly full. Summarise your work so far for somebody who continues it without having seen it: the task, what you "
    "did and found, what files you changed and how, what did not work, what is left to do. Write text, not JSON."
)
SHORT = (
    "Summarise in a few sentences how far the work on this task has come, and what to do next.\n\n"
    "Task:\n{task}\n\nEnd of the screen:\n{screen}"
)
QUESTION = (
    "You take over work on a task from somebody whose summary you have. Ask at least five questions about what you need to know and the "
    "summary does not tell.\n\nTask:\n{task}\n\nSummary:\n{summary}\n\nCurrent screen:\n{screen}"
)
ANSWER = "Answer these questions about your work so far, one by one.\n\n{questions}"
CONTINUE = "Here are the answers:\n\n{answers}\n\nGo on with the task. Reply with one JSON object as described at the beginning."
RESUME = "{prompt}\n\nPart of the work was done already.{summary}\n\nCurrent screen:\n{screen}"


async def condense(ask: Ask, history: Sequence[Message], task: str, screen: str) -> list[Message]:
    """Messages to go on from."""
    kept, told = await _summary(ask, list(history))
    if told is None:
        short = await ask([user(SHORT.format(task=task, screen=screen[-SCREEN_TAIL:]))])
        return [user(RESUME.format(prompt=history[0]["content"], summary=f"\n\nSummary:\n{short}" if short else "", screen=screen))]
    question = user(QUESTION.format(task=task, summary=told, screen=screen))
    questions = await ask([question])
    answers = await ask([*kept, user(ANSWER.format(questions=questions))]) if questions else None
    if not answers:
        return [user(RESUME.format(prompt=history[0]["content"], summary=f"\n\nSummary:\n{told}", screen=screen))]
    return [history[0], question, {"role": "assistant", "content": questions}, user(CONTINUE.format(answers=answers))]


async def _summary(ask: Ask, kept: list[Message]) -> tuple[list[Message], str | None]:
    """The history that left room for a summary, and the summary; None when not even its beginning does."""
    while len(kept) > 1:
        if told := await ask([*kept, user(SUMMARISE)]):
            return kept, told
        kept = kept[:-2]
    return kept, None
