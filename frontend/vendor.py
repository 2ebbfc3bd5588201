"""Brings the browser libraries into static/vendor, each pinned and checked.

    python frontend/vendor.py           fetch with npm and write static/vendor, and tests/frontend/vendor for what only tests load
    python frontend/vendor.py --check   verify the committed files against each folder's checksums.txt; no network

The files are committed, because an installation may have no network. The integrity values are npm's own, so a registry
that serves another archive under the same version is refused.
"""

import argparse
import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

SERVED = Path(__file__).parent / "static" / "vendor"
TESTED = Path(__file__).parent.parent / "tests" / "frontend" / "vendor"
CHECKSUMS = "checksums.txt"


@dataclass(frozen=True)
class Package:
    """`files` maps a path inside the archive to its name in the folder."""

    name: str
    version: str
    integrity: str
    files: dict[str, str]


PACKAGES = (  # served to browsers
    Package(
        "htmx.org",
        "2.0.11",
        "sha512-Thx/WtpeOQqSrqBCw/A1cwGJGg4UrVa3+sW0GmrM3p4gJgO89ecH4qtbnyzDDWFvBTqjnIMCgELTNt636dtamA==",
        {"dist/htmx.min.js": "htmx.min.js", "LICENSE": "htmx.LICENSE"},
    ),
    Package(
        "plotly.js-basic-dist-min",
        "4.1.1",
        "sha512-1oNF8PeQx2hv/y7tqEVWKD3JGwn/MGEMQ8mL9HUwsaqG9FGy/OU5FHUHvzqbqxN4mnwZGI9abTiE775C4kkjMQ==",
        {"plotly-basic.min.js": "plotly-basic.min.js", "LICENSE": "plotly.LICENSE"},
    ),
    Package(
        "@fontsource-variable/inter",
        "5.3.0",
        "sha512-OupL48va4JNofb97w6NYeF9S7W/kHNKM0Er8Dem5nqi4jeOLrVJDoE8tZEpnMJmtkvNbB1EIPPwHcdkF6b1oUA==",
        {"files/inter-latin-wght-normal.woff2": "inter.woff2", "LICENSE": "inter.LICENSE"},
    ),
    Package(
        "@fontsource-variable/jetbrains-mono",
        "5.3.0",
        "sha512-F32xpS2NsGYoQi2ADSkKTgpJj7ozajsGgDJ8woTnqjmIB+dxDIqImjl4pXZVEExu8UFZ2ndhmX18EBS/hdz3Lw==",
        {"files/jetbrains-mono-latin-wght-normal.woff2": "jetbrains-mono.woff2", "LICENSE": "jetbrains-mono.LICENSE"},
    ),
)

TEST_PACKAGES = (
    Package(
        "axe-core",
        "4.14.1",
        "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        {"axe.min.js": "axe.min.js", "LICENSE": "axe.LICENSE"},
    ),
)
FOLDERS = {SERVED: PACKAGES, TESTED: TEST_PACKAGES}


class Refused(SystemExit):
    """A file is not the one that was pinned."""


def fetch(package: Package, folder: Path) -> Path:
    """Path of the package's archive, verified against its integrity value."""
    specifier = f"{package.name}@{package.version}"
    done = subprocess.run(["npm", "pack", "--silent", specifier], cwd=folder, check=True, capture_output=True, text=True)
    archive = folder / done.stdout.split()[-1]
    kind, expected = package.integrity.split("-", 1)
    found = base64.b64encode(hashlib.new(kind, archive.read_bytes()).digest()).decode()
    if found != expected:
        raise Refused(f"{specifier}: integrity {kind}-{found} is not the pinned {package.integrity}; look at the archive before changing the pin")
    return archive


def unpack(package: Package, archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for source, target in package.files.items():
            (folder / target).write_bytes(tar.extractfile(f"package/{source}").read())


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_checksums(folder: Path, packages: tuple[Package, ...]) -> None:
    names = sorted(name for package in packages for name in package.files.values())
    (folder / CHECKSUMS).write_text("".join(f"{checksum(folder / name)}  {name}\n" for name in names))


def check(folder: Path) -> None:
    """Raises Refused naming the first committed file that differs from the folder's checksums."""
    for line in (folder / CHECKSUMS).read_text().splitlines():
        expected, name = line.split("  ", 1)
        if not (folder / name).exists() or checksum(folder / name) != expected:
            raise Refused(f"{folder.parent.name}/{folder.name}/{name} is not the pinned file; run python frontend/vendor.py")


def bring(folder: Path, packages: tuple[Package, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as archives:
        for package in packages:
            unpack(package, fetch(package, Path(archives)), folder)
    write_checksums(folder, packages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only verify the committed files")
    only_check = parser.parse_args().check
    for folder, packages in FOLDERS.items():
        check(folder) if only_check else bring(folder, packages)


if __name__ == "__main__":
    sys.exit(main())
