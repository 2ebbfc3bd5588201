"""Small bank files."""

import zstandard

from runner.contract.bank import Demonstration, Task, write_bank


def payload(number=0, key="A", options=("iron", "oxygen", "gold", "neon")):
    choices = [{"label": label, "text": text} for label, text in zip("ABCDEFGH", options)]
    return {"instruction": "Answer.", "question": f"Which is number {number}?", "choices": choices, "answer_key": key}


def task(number, split="train", domain="physics", key="A", **fields):
    fields.setdefault("payload", payload(number, key))
    return Task(key=f"t{number}", split=split, domain=domain, level="L1", family="elements", **fields)


TASKS = [
    *(task(number) for number in range(6)),
    *(
        task(number, "eval", domain, key)
        for number, domain, key in ((6, "physics", "A"), (7, "chemistry", "B"), (8, "chemistry", "B"), (9, "biology", "C"))
    ),
]
DEMONSTRATIONS = [
    Demonstration(key="d0", kind="statement", completion="Iron is a metal."),
    Demonstration(key="d1", kind="format", prompt="Q", completion="A"),
]


def bank_file(tasks=TASKS, demonstrations=DEMONSTRATIONS) -> bytes:
    return write_bank([*tasks, *demonstrations])[0]


def shuffled_file() -> bytes:
    """The same content with its lines in another order."""
    lines = zstandard.decompress(bank_file()).splitlines()
    return zstandard.compress(b"\n".join(reversed(lines)) + b"\n")
