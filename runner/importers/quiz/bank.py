"""The whole bank: questions of every family, and what the warm start reads."""

from runner.contract.bank import Demonstration, Task
from runner.importers.quiz import biology, chemistry, materials, physics
from runner.importers.quiz.demonstrations import demonstrations
from runner.importers.quiz.questions import questions
from runner.importers.report import Report

FAMILIES = (*biology.FAMILIES, *chemistry.FAMILIES, *materials.FAMILIES, *physics.FAMILIES)
# A training question's options must vary, or a small model memorises them instead of reading them.
TRAIN_ROUNDS = 6
EVAL_ROUNDS = 3


def quiz_bank(seed: int = 0) -> tuple[list[Task], list[Demonstration], Report]:
    """Tasks, demonstrations and report; the same for the same seed."""
    tasks = [task for family in FAMILIES for task in questions(family, seed, TRAIN_ROUNDS, EVAL_ROUNDS)]
    report = Report({"name": "bundled facts and formulas", "seed": seed}, read=len(tasks))
    training = [task for task in tasks if task.split == "train"]
    return tasks, list(demonstrations(FAMILIES, training, seed)), report
