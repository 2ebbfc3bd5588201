"""Checks the types of the browser's modules, which are written in their comments: `python frontend/check_types.py`.

A developer's check: it needs Node with npm, and nothing that is served needs either. TypeScript is fetched once into .assay/typescript,
pinned and verified as the libraries of vendor.py are.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from vendor import Package, fetch

FRONTEND = Path(__file__).parent
COMPILER = FRONTEND.parent / ".assay" / "typescript"
TYPESCRIPT = Package(
    "typescript",
    "5.9.3",
    "sha512-jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw==",
    {},
)


def compiler() -> Path:
    """The pinned compiler's script, fetched when it is not there."""
    folder = COMPILER / TYPESCRIPT.version
    if not folder.exists():
        COMPILER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=COMPILER) as scratch:
            with tarfile.open(fetch(TYPESCRIPT, Path(scratch))) as archive:
                archive.extractall(scratch, filter="data")
            (Path(scratch) / "package").rename(folder)
    return folder / "lib" / "tsc.js"


def main() -> int:
    if missing := [name for name in ("node", "npm") if not shutil.which(name)]:
        print(f"{' and '.join(missing)} not found; install Node 20 or newer (https://nodejs.org, or apt install nodejs npm)", file=sys.stderr)
        return 2
    return subprocess.run(["node", compiler(), "--project", FRONTEND / "jsconfig.json"]).returncode


if __name__ == "__main__":
    sys.exit(main())
