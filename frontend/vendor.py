"""Brings the browser libraries into static/vendor, each pinned and checked.

    python frontend/vendor.py           fetch with npm and write static/vendor
    python frontend/vendor.py --check   verify the committed files against checksums.txt; no network

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

FOLDER = Path(__file__).parent / "static" / "vendor"
CHECKSUMS = FOLDER / "checksums.txt"


@dataclass(frozen=True)
class Package:
    """`files` maps a path inside the archive to its name under static/vendor."""

    name: str
    version: str
    integrity: str
    files: dict[str, str]


PACKAGES = (
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


def unpack(package: Package, archive: Path) -> None:
    with tarfile.open(archive) as tar:
        for source, target in package.files.items():
            (FOLDER / target).write_bytes(tar.extractfile(f"package/{source}").read())


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_checksums() -> None:
    names = sorted(name for package in PACKAGES for name in package.files.values())
    CHECKSUMS.write_text("".join(f"{checksum(FOLDER / name)}  {name}\n" for name in names))


def check() -> None:
    """Raises Refused naming the first committed file that differs from checksums.txt."""
    for line in CHECKSUMS.read_text().splitlines():
        expected, name = line.split("  ", 1)
        if not (FOLDER / name).exists() or checksum(FOLDER / name) != expected:
            raise Refused(f"static/vendor/{name} is not the pinned file; run python frontend/vendor.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only verify the committed files")
    if parser.parse_args().check:
        return check()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            unpack(package, fetch(package, Path(folder)))
    write_checksums()


if __name__ == "__main__":
    sys.exit(main())
