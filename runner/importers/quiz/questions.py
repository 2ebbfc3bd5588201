"""From facts to questions: which siblings stand beside the answer, and under which letter.

The siblings of a family are cut into blocks of four; each block is asked four times with the same four options, once for each of
its facts, and the four keys take the four letters once each. So whatever can be said about the options without reading
the question (their text, length, order, letter) is right for exactly one question in four.
"""
import random
from collections.abc import Iterator

from runner.contract.bank import Choice, ChoicePayload, Task
from runner.importers.quiz.family import CHOICES, Family

LETTERS = "ABCD"
MOST_DRAWS = 10_000
Block = tuple[int, ...]


def blocks(family: Family, rng: random.Random, taken: set[frozenset[int]]) -> list[Block]:
    """Cut the family's fact numbers into random blocks of four, none of which is in `taken`; adds them to it.

    Raises ValueError when there seems to be no such cut left.
    """
    for _ in range(MOST_DRAWS):
        order = rng.sample(range(len(family.facts)), len(family.facts))
        cut = [tuple(order[i:i + CHOICES]) for i in range(0, len(order), CHOICES)]
        if taken.isdisjoint(map(frozenset, cut)):
            taken.update(map(frozenset, cut))
            return cut
    raise ValueError(f"family {family.name}: {len(family.facts)} facts give no further option sets beside {len(taken)} used ones; ask in fewer rounds")


def arranged(block: Block, rng: random.Random) -> Iterator[tuple[int, list[int]]]:
    """Yield (asked fact, facts in the order of the letters) for each fact of a block; the keys take each letter once."""
    for position, asked in zip(rng.sample(range(CHOICES), CHOICES), block):
        options = rng.sample([fact for fact in block if fact != asked], CHOICES - 1)
        options.insert(position, asked)
        yield asked, options


def sentence(template: str, subject: str, answer: str = "") -> str:
    """The template filled in, with a capital first letter."""
    text = template.format(s=subject, a=answer)
    return text[0].upper() + text[1:]


def questions(family: Family, seed: int, train_rounds: int, eval_rounds: int) -> Iterator[Task]:
    """Every fact asked by every template, `…_rounds` times with other siblings beside the answer.

    No block of options occurs twice in the family, so held-out questions have option sets never seen in training.
    """
    rng, taken = random.Random(f"{seed}/{family.name}"), set()
    for split, templates, rounds in (("train", family.train_questions, train_rounds), ("eval", family.eval_questions, eval_rounds)):
        for form, template in enumerate(templates):
            for turn in range(rounds):
                for block in blocks(family, rng, taken):
                    for asked, options in arranged(block, rng):
                        yield _task(family, split, f"{form}-{turn}", template, asked, options)


def _task(family: Family, split: str, round_name: str, template: str, asked: int, options: list[int]) -> Task:
    subject, answer = family.facts[asked]
    texts = [family.facts[option][1] for option in options]
    payload = ChoicePayload(
        instruction="",
        question=sentence(template, subject),
        choices=[Choice(label=letter, text=text) for letter, text in zip(LETTERS, texts)],
        answer_key=LETTERS[texts.index(answer)],
    )
    key = f"{family.name}/{subject.replace(' ', '-')}/{split}-{round_name}"
    return Task(key=key, split=split, domain=family.domain, level=family.level, family=family.name, payload=payload.model_dump())
