"""The columns that the list of runs can show, and which of them an address asks for."""

from dataclasses import dataclass

from django.http import QueryDict

from controlplane.runs.listing import InvalidFilter
from controlplane.telemetry.services import HEADLINES
from runner.contract.metrics import Metric, lookup

PARAMETER = "column"


@dataclass(frozen=True)
class Column:
    """`sort` names the order that its heading offers. A measured column shows `metric`'s newest value, kept in `Run.latest` under `key`."""

    key: str
    label: str
    sort: str = ""
    metric: Metric | None = None
    decimals: int = 3
    shown: bool = False

    @property
    def is_measured(self) -> bool:
        return self.metric is not None


def _measured(key: str, label: str, decimals: int = 3, sort: str = "", shown: bool = False) -> Column:
    name = next(name for name, short in HEADLINES.items() if short == key)
    return Column(key, label, sort, lookup(name), decimals, shown)


COLUMNS = (
    Column("step", "Step", sort="step", shown=True),
    _measured("reward", "Reward", sort="reward", shown=True),
    Column("trend", "Reward over steps", shown=True),
    _measured("forced_choice", "Forced choice"),
    _measured("accuracy", "Accuracy"),
    _measured("verifier_error", "Verifier err.", shown=True),
    _measured("length", "Length", 1, shown=True),
    _measured("entropy", "Entropy"),
    _measured("kl", "KL", 5),
    _measured("throughput", "Tokens/s", 0),
    Column("method", "Method", shown=True),
    Column("environment", "Environment", shown=True),
    Column("model", "Model", shown=True),
    Column("seed", "Seed"),
    Column("tags", "Tags"),
    Column("project", "Project"),
    Column("owner", "Owner", shown=True),
    Column("age", "Age", sort="created", shown=True),
)
USUAL = tuple(column.key for column in COLUMNS if column.shown)


def chosen(parameters: QueryDict) -> list[Column]:
    """The columns that the address names, in our order; the usual ones when it names none. Raises InvalidFilter for an unknown one."""
    wanted = parameters.getlist(PARAMETER) or USUAL
    known = {column.key for column in COLUMNS}
    for key in wanted:
        if key not in known:
            raise InvalidFilter(f"{PARAMETER}: {key!r:.60} is none of {', '.join(sorted(known))}")
    return [column for column in COLUMNS if column.key in wanted]


def query(columns: list[Column]) -> str:
    """What the address of the rows says of their columns; blank for the usual ones."""
    keys = [column.key for column in columns]
    if keys == list(USUAL):
        return ""
    stored = QueryDict(mutable=True)
    stored.setlist(PARAMETER, keys)
    return stored.urlencode()
