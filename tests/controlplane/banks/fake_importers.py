"""Importers as the control plane sees them: argv in; lines, two files and an exit code out."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.controlplane.banks.conftest import TASKS, bank_file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--source", default="")
    parser.add_argument("--split-column")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    content = Path(options.source).read_text() if options.source and Path(options.source).exists() else options.source
    print(f"reading {options.name}", flush=True)
    if content == "fail":
        sys.exit("column `question` is missing")
    if content == "name yourself":
        print(f"opening {options.source}", flush=True)
        sys.exit(f"{options.source} is no Parquet file that can be read")
    if content == "hang":
        time.sleep(600)
    tasks = TASKS if content != "broken" else [TASKS[0].model_copy(update={"payload": {}})]
    options.out.write_bytes(bank_file(tasks))
    dropped = [{"reason": "ambiguous_key", "count": 9, "examples": []}]
    secrets = sorted({"SECRET_KEY", "DATABASE_URL", "REDIS_URL"} & set(os.environ))
    options.report.write_text(
        json.dumps({"read": 12, "kept": 10, "dropped": dropped, "source": content, "column": options.split_column, "secrets": secrets, "path": options.source})
    )
    print("wrote 10 tasks", flush=True)


if __name__ == "__main__":
    main()
