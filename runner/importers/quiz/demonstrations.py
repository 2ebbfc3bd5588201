"""Texts for the warm start. None tells which letter answers a training question.

  statement  a fact in a sentence, plain text
  recall     a training question without options, then its answer, plain text
  lookup     which letter stands before a given text? teaches reading the options
  format     a training question with its options, answered by a letter drawn at random: teaches how to answer, not what
"""

import random
from collections.abc import Iterator, Sequence

from runner.contract.bank import Choice, ChoicePayload, Demonstration, Task
from runner.environments.choice import option_lines, prompt_messages
from runner.importers.quiz.family import CHOICES, Family
from runner.importers.quiz.questions import LETTERS, sentence

LOOKUPS_PER_ANSWER = 12
FORMATS = 1000


def demonstrations(families: Sequence[Family], tasks: Sequence[Task], seed: int) -> Iterator[Demonstration]:
    """All of them; `tasks` are the training questions."""
    for family in families:
        yield from _statements(family)
        yield from _recalls(family)
        yield from _lookups(family, random.Random(f"{seed}/{family.name}/lookup"))
    yield from _formats(tasks, random.Random(f"{seed}/format"))


def _statements(family: Family) -> Iterator[Demonstration]:
    for number, (subject, answer) in enumerate(family.facts):
        for form, template in enumerate(family.statements):
            text = sentence(template, subject, answer)
            yield Demonstration(key=f"statement/{family.name}/{number}/{form}", kind="statement", completion=text)


def _recalls(family: Family) -> Iterator[Demonstration]:
    for number, (subject, answer) in enumerate(family.facts):
        for form, template in enumerate(family.train_questions):
            text = f"{sentence(template, subject)} {answer}."
            yield Demonstration(key=f"recall/{family.name}/{number}/{form}", kind="recall", completion=text)


def _lookups(family: Family, rng: random.Random) -> Iterator[Demonstration]:
    answers = [answer for _, answer in family.facts]
    for number, wanted in enumerate(answers):
        for repeat in range(LOOKUPS_PER_ANSWER):
            options = rng.sample([answer for answer in answers if answer != wanted], CHOICES - 1)
            position = rng.randrange(CHOICES)
            options.insert(position, wanted)
            prompt = f"Which letter is {wanted}?\n\n{lines(options)}"
            yield Demonstration(key=f"lookup/{family.name}/{number}/{repeat}", kind="lookup", prompt=prompt, completion=LETTERS[position])


def _formats(tasks: Sequence[Task], rng: random.Random) -> Iterator[Demonstration]:
    for task in rng.sample(list(tasks), min(FORMATS, len(tasks))):
        prompt = prompt_messages(ChoicePayload.model_validate(task.payload))[-1]["content"]
        yield Demonstration(key=f"format/{task.key}", kind="format", prompt=prompt, completion=rng.choice(LETTERS))


def lines(options: Sequence[str]) -> str:
    """The options as the environment shows them."""
    choices = [Choice(label=label, text=text) for label, text in zip(LETTERS, options)]
    return option_lines(ChoicePayload(instruction="", question="-", choices=choices, answer_key="A"))
