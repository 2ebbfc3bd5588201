"""The REST API under schemathesis: 200 cases an operation, then 2,000, 0 failures; `fuzz N …` for other numbers.

Runs the test of the ordinary suite with more examples and prints one JSON line for each round.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.server import machine
from controlplane.env import CHECKOUT

ROUNDS = ("200", "2000")
TEST = "tests/strangers/test_schemathesis.py"


def main(arguments: list[str]) -> None:
    """Each argument is a number of examples. Exits with pytest's status at the first round that finds something."""
    for examples in arguments or ROUNDS:
        with tempfile.TemporaryDirectory(prefix="assay-fuzz-") as folder:
            report = Path(folder) / "report.json"
            environment = {**os.environ, "ASSAY_EXAMPLES": examples, "ASSAY_FUZZ_RECORD": str(report)}
            command = [sys.executable, "-m", "pytest", "-q", TEST]
            code = subprocess.run(command, check=False, cwd=CHECKOUT, env=environment, stdout=sys.stderr).returncode
            figures = json.loads(report.read_text()) if report.exists() else {}
        print(json.dumps({"name": "fuzz", "examples": int(examples), **figures, "machine": machine()}), flush=True)
        if code:
            sys.exit(code)
