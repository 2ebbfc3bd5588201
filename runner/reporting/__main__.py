"""`python -m runner.reporting replay DIR`: deliver what an attempt's emitters left on disk."""

import argparse
import sys
from pathlib import Path

from runner.reporting.replay import replay


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.reporting", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("replay", help="deliver the spool of an attempt whose driver is gone")
    command.add_argument("folder", type=Path, help="the attempt's folder: <storage>/attempts/<number>")
    command.add_argument("--timeout", type=float, default=300.0, help="seconds to keep trying")
    arguments = parser.parse_args()
    try:
        result = replay(arguments.folder, timeout=arguments.timeout)
    except FileNotFoundError as error:
        print(f"{arguments.folder}: nothing to replay: {error.filename} does not exist", file=sys.stderr)
        return 2
    print(f"delivered {result.delivered} batches; {result.left} spools left, {result.busy} still in use")
    return 0 if not result.left else 1


if __name__ == "__main__":
    sys.exit(main())
