"""One family of the quiz: facts of the same kind, which serve as each other's distractors."""
from dataclasses import dataclass

#: Options of a question. A family's size is a multiple of it, so that its facts fall into whole blocks.
CHOICES = 4


@dataclass(frozen=True)
class Family:
    """Facts (subject, answer) and the sentences that state them or ask for them.

    `statements`, `train_questions` and `eval_questions` are templates with `{s}` for the subject; a statement also has
    `{a}` for the answer. Answers are distinct within a family, and none but the fact's own is true of its subject.
    """

    name: str
    domain: str
    level: str
    facts: tuple[tuple[str, str], ...]
    statements: tuple[str, ...]
    train_questions: tuple[str, ...]
    eval_questions: tuple[str, ...]

    def __post_init__(self) -> None:
        subjects, answers = zip(*self.facts)
        if len(self.facts) % CHOICES:
            raise ValueError(f"family {self.name}: {len(self.facts)} facts; make it a multiple of {CHOICES}")
        if len(set(subjects)) < len(subjects) or len(set(answers)) < len(answers):
            raise ValueError(f"family {self.name}: subjects and answers must be distinct, because siblings are distractors")
