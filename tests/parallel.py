"""How the suite is shared out to several processes (pytest-xdist): a file stays together, and what takes longest starts first."""

from xdist.scheduler import LoadScopeScheduling

# All tests with containers share one engine, so one process runs them.
CONTAINERS = ("tests/runner/sandbox/", "tests/runner/environments/", "tests/repair_bank/test_containers.py")

# Longest first, so that no process is left alone with one of them at the end.
LONGEST = (
    "containers",
    "tests/chaos/test_kills.py",
    "tests/e2e/",
    "tests/runner/loop/",
    "tests/frontend/",
    "tests/repair_bank/",
    "tests/services/",
    "tests/strangers/",
    "tests/runner/",
)


def unit(nodeid: str) -> str:
    """What must stay in one process with this test."""
    file = nodeid.partition("::")[0]
    return "containers" if file.startswith(CONTAINERS) else file


def rank(nodeid: str) -> int:
    place = unit(nodeid)
    return next((rank for rank, prefix in enumerate(LONGEST) if place.startswith(prefix)), len(LONGEST))


class Shares(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
