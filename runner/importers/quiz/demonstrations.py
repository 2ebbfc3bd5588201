"""Texts for the warm start. None tells which letter answers a training question.

  statement  a fact in a sentence, plain text
  words      a training question without options, answered in words
  lookup     which letter stands before a given text? teaches reading the options
  match      every option beside its letter: the same, with more to learn from one text
  format     a training question with its options, answered by a letter drawn at random: teaches how to answer, not what

A warm start draws demonstrations evenly, so each kind's number is its share of the lessons; the few sentences there are
about the facts are repeated to that end.
"""

import random
from collections.abc import Iterator, Sequence

from runner.contract.bank import Choice, ChoicePayload, Demonstration, Task
from runner.environments.choice import option_lines, prompt_messages
from runner.importers.quiz.family import CHOICES, Family
from runner.importers.quiz.questions import LETTERS, sentence

STATEMENT_REPEATS = 8
WORDS_REPEATS = 12
FAMILY_LOOKUPS = 3000
MIXED_LOOKUPS = 3000
MATCHES = 3000
FORMATS = 800


def demonstrations(families: Sequence[Family], tasks: Sequence[Task], seed: int) -> Iterator[Demonstration]:
    """All of them; `tasks` are the training questions."""
    for family in families:
        yield from _statements(family)
        yield from _words(family)
    yield from _lookups(families, random.Random(f"{seed}/lookup"))
    yield from _matches(families, random.Random(f"{seed}/match"))
    yield from _formats(tasks, random.Random(f"{seed}/format"))


def _statements(family: Family) -> Iterator[Demonstration]:
    for number, (subject, answer) in enumerate(family.facts):
        for form, template in enumerate(family.statements):
            text = sentence(template, subject, answer)
            for repeat in range(STATEMENT_REPEATS):
                yield Demonstration(key=f"statement/{family.name}/{number}/{form}/{repeat}", kind="statement", completion=text)


def _words(family: Family) -> Iterator[Demonstration]:
    for number, (subject, answer) in enumerate(family.facts):
        for form, template in enumerate(family.train_questions):
            question = sentence(template, subject)
            for repeat in range(WORDS_REPEATS):
                key = f"words/{family.name}/{number}/{form}/{repeat}"
                # The blank makes the answer the same tokens as inside a sentence.
                yield Demonstration(key=key, kind="words", prompt=question, completion=f" {answer}")


def _lookups(families: Sequence[Family], rng: random.Random) -> Iterator[Demonstration]:
    for number in range(FAMILY_LOOKUPS + MIXED_LOOKUPS):
        options = _mixed_options(families, rng) if number < MIXED_LOOKUPS else _family_options(families, rng)
        position = rng.randrange(len(options))
        prompt = f"Which letter is {options[position]}?\n\n{lines(options)}"
        yield Demonstration(key=f"lookup/{number}", kind="lookup", prompt=prompt, completion=LETTERS[position])


def _matches(families: Sequence[Family], rng: random.Random) -> Iterator[Demonstration]:
    for number in range(MATCHES):
        options = _mixed_options(families, rng)
        order = rng.sample(range(len(options)), len(options))
        text = ",".join(f" {options[position]} {LETTERS[position]}" for position in order)
        yield Demonstration(key=f"match/{number}", kind="match", prompt=f"Match.\n\n{lines(options)}", completion=text)


def _formats(tasks: Sequence[Task], rng: random.Random) -> Iterator[Demonstration]:
    for task in rng.sample(list(tasks), min(FORMATS, len(tasks))):
        prompt = prompt_messages(ChoicePayload.model_validate(task.payload))[-1]["content"]
        yield Demonstration(key=f"format/{task.key}", kind="format", prompt=prompt, completion=rng.choice(LETTERS))


def _family_options(families: Sequence[Family], rng: random.Random) -> list[str]:
    return rng.sample([answer for _, answer in rng.choice(families).facts], CHOICES)


def _mixed_options(families: Sequence[Family], rng: random.Random) -> list[str]:
    """Two to four answers of any families: short lists are the easier first lessons."""
    answers = sorted({answer for family in families for _, answer in family.facts})
    return rng.sample(answers, rng.randint(2, CHOICES))


def lines(options: Sequence[str]) -> str:
    """The options as the environment shows them."""
    choices = [Choice(label=label, text=text) for label, text in zip(LETTERS, options)]
    return option_lines(ChoicePayload(instruction="", question="-", choices=choices, answer_key="A"))
