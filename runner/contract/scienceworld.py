"""ScienceWorld 1.2.3 as both halves know it: its thirty tasks, its simplifications, and what a bank's task says."""

from dataclasses import dataclass

from pydantic import Field

from runner.contract.canonical import Document

VERSION = "1.2.3"
SIMPLIFICATIONS = ("teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction")
# Tasks of this split may lend their gold to training; every other split is for evaluation.
TRAINING_SPLIT = "train"
DEV140 = "dev140"
# Resident memory of one simulator with the default heap, and of the process that holds it.
SIMULATOR_BYTES = 460 << 20


class ScienceWorldPayload(Document):
    """One variation of one task."""

    task_id: str = Field(max_length=8)
    task: str = Field(min_length=1, max_length=80)
    topic: str = ""
    title: str = ""
    variation: int = Field(ge=0)


@dataclass(frozen=True)
class Kind:
    """One of the thirty tasks; `name` is what the simulator calls it. A wiring task cannot be played without electrical actions."""

    id: str
    name: str
    topic: str
    title: str

    @property
    def is_wiring(self) -> bool:
        return "power-component" in self.name or "conductivity" in self.name


KINDS = (
    Kind("1-1", "boil", "Matter", "Changes of State (Boiling)"),
    Kind("1-2", "melt", "Matter", "Changes of State (Melting)"),
    Kind("1-3", "freeze", "Matter", "Changes of State (Freezing)"),
    Kind("1-4", "change-the-state-of-matter-of", "Matter", "Changes of State (Any)"),
    Kind("2-1", "use-thermometer", "Measurement", "Use Thermometer"),
    Kind("2-2", "measure-melting-point-known-substance", "Measurement", "Measuring Boiling Point (known)"),
    Kind("2-3", "measure-melting-point-unknown-substance", "Measurement", "Measuring Boiling Point (unknown)"),
    Kind("3-1", "power-component", "Electricity", "Create a circuit"),
    Kind("3-2", "power-component-renewable-vs-nonrenewable-energy", "Electricity", "Renewable vs Non-renewable Energy"),
    Kind("3-3", "test-conductivity", "Electricity", "Test Conductivity (known)"),
    Kind("3-4", "test-conductivity-of-unknown-substances", "Electricity", "Test Conductivity (unknown)"),
    Kind("4-1", "find-living-thing", "Classification", "Find a living thing"),
    Kind("4-2", "find-non-living-thing", "Classification", "Find a non-living thing"),
    Kind("4-3", "find-plant", "Classification", "Find a plant"),
    Kind("4-4", "find-animal", "Classification", "Find an animal"),
    Kind("5-1", "grow-plant", "Biology", "Grow a plant"),
    Kind("5-2", "grow-fruit", "Biology", "Grow a fruit"),
    Kind("6-1", "chemistry-mix", "Chemistry", "Mixing (generic)"),
    Kind("6-2", "chemistry-mix-paint-secondary-color", "Chemistry", "Mixing paints (secondary colours)"),
    Kind("6-3", "chemistry-mix-paint-tertiary-color", "Chemistry", "Mixing paints (tertiary colours)"),
    Kind("7-1", "lifespan-longest-lived", "Biology", "Identify longest-lived animal"),
    Kind("7-2", "lifespan-shortest-lived", "Biology", "Identify shortest-lived animal"),
    Kind("7-3", "lifespan-longest-lived-then-shortest-lived", "Biology", "Identify longest-then-shortest-lived animal"),
    Kind("8-1", "identify-life-stages-1", "Biology", "Identify life stages (plant)"),
    Kind("8-2", "identify-life-stages-2", "Biology", "Identify life stages (animal)"),
    Kind("9-1", "inclined-plane-determine-angle", "Forces", "Inclined Planes (determine angle)"),
    Kind("9-2", "inclined-plane-friction-named-surfaces", "Forces", "Friction (known surfaces)"),
    Kind("9-3", "inclined-plane-friction-unnamed-surfaces", "Forces", "Friction (unknown surfaces)"),
    Kind("10-1", "mendelian-genetics-known-plant", "Biology", "Mendelian Genetics (known plants)"),
    Kind("10-2", "mendelian-genetics-unknown-plant", "Biology", "Mendelian Genetics (unknown plants)"),
)
_BY_WORD = {word: kind for kind in KINDS for word in (kind.id, kind.name)}


def kind_of(word: str) -> Kind:
    """The task with that id or name. Raises ValueError naming what there is."""
    if word not in _BY_WORD:
        raise ValueError(f"{word!r} is no task of ScienceWorld; its ids are {', '.join(kind.id for kind in KINDS)}")
    return _BY_WORD[word]


def check_simplification(text: str, kind: Kind | None = None) -> str:
    """`text` when the simulator understands it (for `kind`, where given). Raises ValueError with the remedy.

    The simulator takes `easy` only as the whole text: beside other names it answers every action with an error.
    """
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in (*SIMPLIFICATIONS, "easy")]:
        raise ValueError(
            f"{unknown[0]!r} is no simplification; choose easy, or some of {', '.join(SIMPLIFICATIONS)} with commas and no blanks"
        )
    if "easy" in names and text != "easy":
        spelled = ",".join(
            dict.fromkeys(["teleportAction", "openDoors", "selfWateringFlowerPots", *(name for name in names if name != "easy")])
        )
        raise ValueError(f"{text!r}: easy stands alone; spell its parts out, such as {spelled}")
    if kind and kind.is_wiring and "noElectricalAction" in names:
        raise ValueError(
            f"task {kind.id} {kind.name} is about wiring and cannot be played with noElectricalAction; leave it out, or use easy"
        )
    return text


def fixed_dev(first: dict[str, int], sizes: dict[str, int], total: int = 140, each: int = 4) -> dict[str, list[int]]:
    """The fixed validation list: {task id: variations}, given where each task's dev range begins and how many it has.

    `each` of a task, all where it has fewer; then one more a task, in the tasks' order, until there are `total`; evenly spaced over the
    range with both ends in.
    """
    counts = {name: min(each, size) for name, size in sizes.items()}
    for name, size in sizes.items():
        if sum(counts.values()) < total and counts[name] < size:
            counts[name] += 1
    return {name: [first[name] + offset for offset in _spread(sizes[name], count)] for name, count in counts.items()}


def _spread(size: int, count: int) -> list[int]:
    return [0] if count == 1 else [step * (size - 1) // (count - 1) for step in range(count)]
