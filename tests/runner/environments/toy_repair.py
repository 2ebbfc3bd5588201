"""A repair of one line: a tree of two text files, a menu of edits, a verifier that reads what was delivered."""

import json
from pathlib import Path

from runner.contract.bank import Task
from runner.environments.harbor import HarborEnvironment
from runner.environments.site import Site
from runner.repair.cache import TaskCache
from tests.runner.sandbox.tasks import BASE, write_task

MENU = [
    {"file": "src/flux.txt", "old": "a - b", "new": "a + b", "label": "flux adds b"},
    {"file": "src/flux.txt", "old": "c = 3", "new": "c = 4", "label": "c is four"},
    {"file": "src/flux.txt", "old": "d = 1", "new": "d = 2", "label": "d is two"},
    {"file": "src/time.txt", "old": "t = 0", "new": "t = 1", "label": "time starts at one"},
    {"file": "src/time.txt", "old": "n = 9", "new": "n = 8", "label": "eight steps"},
]
FIX = MENU[0]
PREPARE = """#!/bin/sh
set -e
A=${ASSAY_APP:-/app}
mkdir -p $A/heat/src $A/tools
printf 'a - b\\nc = 3\\nd = 1\\n' > $A/heat/src/flux.txt
printf 't = 0\\nn = 9\\n' > $A/heat/src/time.txt
cp tools/* $A/tools/ && chmod 755 $A/tools/*
"""
TOOLS = {
    "tree": '#!/bin/sh\necho "${ASSAY_APP:-/app}/heat"\n',
    "build": "#!/bin/sh\nexit 0\n",
    "check": """#!/bin/sh
if grep -q "a + b" "${ASSAY_APP:-/app}/heat/src/flux.txt"; then echo "heat-32 energy: ok"; else echo "heat-32 energy: WRONG"; exit 1; fi
""",
    "deliver": """#!/bin/sh
mkdir -p "${ASSAY_LOGS:-/logs}/artifacts/source"
cp -R "${ASSAY_APP:-/app}/heat/src" "${ASSAY_LOGS:-/logs}/artifacts/source/"
""",
}
TEST = """#!/bin/sh
L=${ASSAY_LOGS:-/logs}
echo graded
if [ ! -d $L/artifacts/source ]; then
  echo '{"reward": 0, "reward_repair": 0, "equivalence_pass": 0, "floor": 0.35, "check_heat_32": 0}' > $L/verifier/reward.json
elif grep -q "a + b" $L/artifacts/source/src/flux.txt; then
  echo '{"reward": 1, "reward_repair": 1, "equivalence_pass": 1, "floor": 0.35, "check_heat_32": 1}' > $L/verifier/reward.json
else
  echo '{"reward": 0.35, "reward_repair": 0, "equivalence_pass": 0, "floor": 0.35, "check_heat_32": 0.35}' > $L/verifier/reward.json
fi
"""


def make_task(folder: Path, cache: TaskCache, test: str = TEST, **changes) -> Task:
    """The bank's record of the toy, its files in the cache."""
    solve = '#!/bin/sh\nset -e\nA=${ASSAY_APP:-/app}\nsed -i "s/a - b/a + b/" $A/heat/src/flux.txt\n$A/tools/deliver\n'
    fix = {"edits": [{key: FIX[key] for key in ("file", "old", "new")}]}
    extra = {"environment/prepare.sh": PREPARE, "tests/prepare.sh": "#!/bin/sh\nexit 0\n", "solution/solve.sh": solve}
    extra |= {f"environment/tools/{name}": text for name, text in TOOLS.items()} | {"solution/defect_fix.json": json.dumps(fix)}
    dockerfile = f"FROM {BASE}\nCOPY . /environment\nRUN cd /environment && sh prepare.sh\nWORKDIR /app\n"
    write_task(folder, test, name="demo/heat-repair-sign", dockerfile=dockerfile, extra=extra)
    payload = {
        "task_digest": cache.adopt(folder),
        "name": "demo/heat-repair-sign",
        "category": "repair",
        "family": "sign",
        "reward_key": "reward_repair",
        "description": "repair of heat",
        "instruction": "Mend the sign.",
        "floor": 0.35,
        "hints": {"L1": "In src/flux.txt, line 1.", "L2": "In src/flux.txt."},
        "menu": MENU,
        **changes,
    }
    return Task(key="demo/heat-repair-sign", split="train", domain="heat", level="easy", family="sign", payload=payload)


class Toy:
    """The toy at a site of its own: `environment()` gives an episode."""

    def __init__(self, folder: Path, settings, house: str, **task):
        cache = TaskCache(folder / "cache")
        self.settings, self.events = settings, []
        self.task = make_task(folder / "task", cache, **task)
        self.site = Site(settings, cache, folder / "jobs", house, "attempt", on_phase=self.events.append, keep_images=False)

    def environment(self) -> HarborEnvironment:
        return HarborEnvironment(self.settings, self.site)


def numbered(text: str) -> dict[str, str]:
    """The options of a question, by their text."""
    lines = [line.partition(". ") for line in text.splitlines() if line[:1].isdigit()]
    return {option: number for number, _, option in lines}
