"""Real builds of the source in temporary folders: the clean one, broken ones, and the question whether an edit compiles."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from runner.repair.apply_defect import apply, changed_files

BUILD_TIMEOUT_S = 300
TOOLS = ("make", "gcc", "gfortran")


class BuildFailed(ValueError):
    """A tree does not build; the message ends with the compiler's last words."""


def missing_tools() -> list[str]:
    """The compilers that this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


class Workbench(AbstractContextManager):
    """Copies of one clean source. The clean build is made once; every other tree starts as a copy of it, objects and all."""

    def __init__(self, source: Path):
        self._folder = tempfile.TemporaryDirectory(prefix="repair-bank-")
        self.root = Path(self._folder.name)
        self.clean = self.root / "clean"
        shutil.copytree(source, self.clean)
        self._verdicts: dict[tuple[str, str, str], bool] = {}
        self._count = 0
        make(self.clean, "all")

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def tree(self, edits: Iterable[dict[str, str]]) -> Path:
        """A copy of the clean tree with the edits applied, not built yet."""
        self._count += 1
        tree = self.root / f"tree{self._count}"
        shutil.copytree(self.clean, tree)
        apply({"edits": list(edits)}, tree)
        return tree

    def compiles(self, edits: list[dict[str, str]], target: str) -> bool:
        """Whether the clean source with these edits builds, in their order.

        Each edited file is built by itself among clean ones: no catalogue entry changes what a file offers to others, so files that build
        alone build together. A text that was built before is not built again.
        """
        files = dict.fromkeys(edit["file"] for edit in edits)
        return all(self._file_builds([edit for edit in edits if edit["file"] == file], target) for file in files)

    def _file_builds(self, edits: list[dict[str, str]], target: str) -> bool:
        ((file, text),) = changed_files({"edits": edits}, lambda path: (self.clean / path).read_text()).items()
        key = target, file, text
        if key not in self._verdicts:
            tree = self.tree(edits)
            self._verdicts[key] = _builds(tree, target)
            shutil.rmtree(tree)
        return self._verdicts[key]


def make(tree: Path, target: str) -> None:
    """Build a target of the tree's Makefile. Raises BuildFailed."""
    done = subprocess.run(["make", "--silent", target], check=False, cwd=tree, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    if done.returncode != 0:
        raise BuildFailed(f"{tree.name}: make {target} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _builds(tree: Path, target: str) -> bool:
    try:
        make(tree, target)
    except BuildFailed:
        return False
    return True
