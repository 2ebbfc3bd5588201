"""Dispatcher of `./assay prove`: without a name it lists the proofs."""

import ast
import importlib
import inspect
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def proofs() -> dict[str, str]:
    """Name and one-line description of each proof; read from the source, so that listing imports nothing."""
    paths = sorted(path for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    return {path.stem: (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0] for path in paths}


def main(arguments: list[str]) -> None:
    known = proofs()
    if not arguments or arguments[0] in ("-h", "--help"):
        return print("usage: ./assay prove NAME [ARGS]\n\n" + "\n".join(f"  {name:<12} {words}" for name, words in known.items()))
    name, *rest = arguments
    if name not in known:
        sys.exit(f"assay: no proof {name!r}; known are {', '.join(known)}")
    proof = importlib.import_module(f"benchmarks.prove.{name}").main
    # Most proofs take no arguments.
    proof(rest) if inspect.signature(proof).parameters else proof()


if __name__ == "__main__":
    main(sys.argv[1:])
