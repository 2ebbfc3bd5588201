"""stage.py BUILT PARCEL TREE: copy a built tree with its times and lay the parcel's files over it, leaving equal ones untouched.

Runs as whoever will build, so that everything in TREE is theirs. Standard library only.
"""

import json
import shutil
import sys
from pathlib import Path


def main(built, parcel, tree):
    shutil.copytree(built, tree)
    for place, text in json.loads(Path(parcel).read_text()).items():
        file, content = tree / place, text.encode("utf-8", "surrogateescape")
        if not file.is_file() or file.read_bytes() != content:
            file.write_bytes(content)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
