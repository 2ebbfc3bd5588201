"""A toy bank that is true all the same: a "simulation" that adds squares, two checks, and defects with their fixes.

`write_authored` writes the sparse layout; the compiler makes the compiled one of it, `as_plain` turns that into a plain Harbor dataset.
"""

import json
import shutil
from pathlib import Path

from runner.repair.compile import canary_of

SIM = """\
import sys


def total(n):
    value = 0
    for number in range(1, n + 1):
        value += number * number
    return value


if __name__ == "__main__":
    print(total(int(sys.argv[1])))
"""

ENV_TOML = """\
schema_version = 1
name = "toy"

[base]
image = "assay-sandbox-base:test"

[source]
directory = "env/source"
commit = "0123456789abcdef0123456789abcdef01234567"
strip = ["docs"]

[tokens]
ROW_TIMEOUT = "20"

[trees.squares]
checks = ["sum-8", "sum-16"]

[[files]]
from = "env/harbor/agent.Dockerfile"
to = ["environment/Dockerfile"]
fill = true

[[files]]
from = "env/harbor/verifier.Dockerfile"
to = ["tests/Dockerfile"]
fill = true

[[files]]
from = "env/harbor/test.sh"
to = ["tests/test.sh"]
executable = true

[[files]]
from = "bank:shared/grade.py"
to = ["tests/grade.py"]
fill = true

[[files]]
from = "env/harbor/solve.sh"
to = ["solution/solve.sh"]
executable = true

[[files]]
from = "env/cases/{check}"
to = ["environment/cases/{check}", "tests/cases/{check}"]

[[files]]
from = "task:menu.json"
to = ["authoring/menu.json"]
optional = true
"""

AGENT_DOCKERFILE = """\
FROM @BASE_IMAGE@ AS prep
COPY source/@SOURCE_ARCHIVE@ /source.tar
COPY defect/ /defect/
RUN mkdir -p /app/toy && tar -xf /source.tar -C /app/toy && python3 /defect/apply_defect.py /defect/defect.json /app/toy && rm -rf @STRIP_SH@

FROM @BASE_IMAGE@
COPY --from=prep /app/toy /app/toy
COPY cases/ /app/cases/
WORKDIR /app/toy
"""

VERIFIER_DOCKERFILE = """\
FROM @BASE_IMAGE@
COPY . /tests/
RUN mkdir -p /clean /straw && tar -xf /tests/source/@SOURCE_ARCHIVE@ -C /clean && tar -xf /tests/source/@SOURCE_ARCHIVE@ -C /straw \\
 && python3 /tests/defect/apply_defect.py /tests/defect/defect.json /straw
"""

TEST_SH = """\
#!/bin/sh
exec python3 "${ASSAY_TESTS:-/tests}/grade.py" "${ASSAY_LOGS:-/logs}"
"""

SOLVE_SH = """\
#!/bin/sh
set -e
python3 "${ASSAY_SOLUTION:-/solution}/apply_defect.py" "${ASSAY_SOLUTION:-/solution}/defect_fix.json" "${ASSAY_APP:-/app}/toy"
mkdir -p "${ASSAY_LOGS:-/logs}/artifacts"
cp "${ASSAY_APP:-/app}/toy/sim.py" "${ASSAY_LOGS:-/logs}/artifacts/sim.py"
"""

GRADE_PY = """\
# @CANARY@
import json, subprocess, sys
from pathlib import Path

CHECKS = @CHECKS_JSON@
FLOOR = @FLOOR@


def run(sim, n):
    done = subprocess.run([sys.executable, str(sim), str(n)], capture_output=True, text=True, timeout=@ROW_TIMEOUT@)
    return done.stdout.strip()


def score(check, sim):
    n = int(check.rpartition("-")[2])
    if not sim.is_file():
        return 0.0
    return 1.0 if run(sim, n) == str(n * (n + 1) * (2 * n + 1) // 6) else 0.2


logs = Path(sys.argv[1])
scores = {check: score(check, logs / "artifacts" / "sim.py") for check in CHECKS}
reward = round(sum(scores.values()) / len(scores), 6)
repair = round(max(0.0, reward - FLOOR) / max(1e-6, 1 - FLOOR), 6)
out = {"reward": reward, "reward_repair": repair, "floor": FLOOR, "equivalence_pass": int(all(value == 1.0 for value in scores.values()))}
out.update({"check_" + check.replace("-", "_"): value for check, value in scores.items()})
(logs / "verifier").mkdir(parents=True, exist_ok=True)
(logs / "verifier" / "reward.json").write_text(json.dumps(out))
"""

#: family → (old, new, note, line of the defect)
DEFECTS = {
    "sign": ("        value += number * number\n", "        value -= number * number\n", "flipped the sign of the sum", 7),
    "coef": ("        value += number * number\n", "        value += 2 * number * number\n", "doubled each term", 7),
    "bounds": ("range(1, n + 1)", "range(1, n)", "the loop ends one too early", 6),
}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def manifest(name: str, family: str, tier: str = "easy", category: str = "repair", **changes) -> str:
    """task.toml of one toy task; `changes` replace values of the taxonomy or, as `extra`, add lines at the end."""
    extra = changes.pop("extra", "")
    taxonomy = {
        "category": category,
        "mode": "injected",
        "family": family,
        "tree": "squares",
        "affected_checks": ["sum-8", "sum-16"],
        "defect_file": "sim.py",
        "floor_native_estimate": 0.2,
        "canary": f"toy-canary GUID {canary_of(name)}",
        "difficulty": tier,
    } | changes
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in taxonomy.items())
    return f"""schema_version = "1.4"
[task]
name = "{name}"
description = "a toy"
[metadata.taxonomy]
{lines}
[environment]
cpus = 1
memory_mb = 256
network_mode = "no-network"
[agent]
timeout_sec = 600
[verifier]
timeout_sec = 60
[verifier.environment]
network_mode = "no-network"
{extra}"""


def write_task(
    bank: Path, short: str, family: str = "sign", tier: str = "easy", category: str = "repair", with_line: bool = True, **changes
) -> Path:
    """One sparse task of the environment toy; returns its folder."""
    folder = bank / "envs" / "toy" / "tasks" / category / tier / short
    old, new, note, line = DEFECTS[family]
    canary = canary_of(f"demo/{short}")
    break_, fix = ({"edits": [{"file": "sim.py", "old": a, "new": b}]} for a, b in ((old, new), (new, old)))
    meta = {"file": "sim.py", **({"line": line} if with_line else {})}
    write(folder / "task.toml", manifest(f"demo/{short}", family, tier, category, **changes))
    write(folder / "instruction.md", f"<!-- canary {canary} -->\n\n# Mend the sum\n\nThe sum of squares is wrong. Repair it.\n")
    write(folder / "defect.json", json.dumps({"_canary": canary, **break_}))
    write(folder / "fix.json", json.dumps({"_canary": canary, **fix}))
    candidate = {
        "id": short,
        "family": family,
        "tree": "squares",
        "source": "inject",
        "note": note,
        "meta": meta,
        "break": break_,
        "fix": fix,
    }
    provenance = {"canary": canary, "candidate": candidate, "funnel": {"status": "survivor", "floor": 0.2}}
    write(folder / "authoring" / "provenance.json", json.dumps(provenance))
    return folder


def write_authored(bank: Path) -> Path:
    """An authored bank with one environment and four tasks in three families."""
    env = bank / "envs" / "toy"
    write(env / "env.toml", ENV_TOML)
    write(env / "env" / "source" / "sim.py", SIM)
    write(env / "env" / "harbor" / "agent.Dockerfile", AGENT_DOCKERFILE)
    write(env / "env" / "harbor" / "verifier.Dockerfile", VERIFIER_DOCKERFILE)
    write(env / "env" / "harbor" / "test.sh", TEST_SH)
    write(env / "env" / "harbor" / "solve.sh", SOLVE_SH)
    write(bank / "shared" / "grade.py", GRADE_PY)
    for check in ("sum-8", "sum-16"):
        row = {"check": check, "timeout_sec": 20, "reference_calibration": {"mean_wall_sec": 0.1, "wall_times_sec": [0.1, 0.11]}}
        write(env / "env" / "cases" / check / "row.json", json.dumps(row))
    write_task(bank, "toy-repair-sign-a", "sign")
    write_task(bank, "toy-repair-sign-b", "sign", with_line=False)
    write_task(bank, "toy-repair-coef-a", "coef")
    write_task(bank, "toy-repair-bounds-a", "bounds")
    return bank


def as_plain(compiled: Path, out: Path) -> Path:
    """The compiled tasks as children of one folder, without taxonomy and without authoring files."""
    for task in sorted(compiled.glob("*/*/*/*")):
        shutil.copytree(task, out / task.name)
        shutil.rmtree(out / task.name / "authoring", ignore_errors=True)
        text = (out / task.name / "task.toml").read_text()
        head, _, rest = text.partition("[metadata.taxonomy]")
        (out / task.name / "task.toml").write_text(head + rest[rest.index("[environment]") :])
    return out
