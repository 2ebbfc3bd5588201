"""Whether a checkpoint's folder is what its manifest says: every file, size and hash is read again."""

import hashlib
import json
from pathlib import Path, PurePosixPath

from runner.contract.canonical import canonical_bytes, digest

MANIFEST = "manifest.json"
MAX_MANIFEST = 64 << 20


class Broken(ValueError):
    """The checkpoint is not complete; the message names the first thing that is wrong."""


def check_path(path: str, run_folder: Path) -> Path:
    """`path` as a folder below the run's own. Raises Broken on one that leads elsewhere, also through a link."""
    resolved, home = Path(path).resolve(), run_folder.resolve()
    if not path.startswith("/") or home not in resolved.parents:
        raise Broken(f"path {path!r} does not lie in the run's storage folder {str(home)!r}")
    return resolved


def check_manifest(manifest) -> dict:
    """The manifest itself: files with sizes and hashes, and the topology it was written by. Raises Broken."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), list) or not manifest["files"]:
        raise Broken("the manifest lists no files")
    if not isinstance(manifest.get("topology"), dict):
        raise Broken("the manifest names no topology")
    for entry in manifest["files"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("size"), int) or len(str(entry.get("sha256"))) != 64:
            raise Broken(f"the manifest's entry {str(entry)[:120]} needs path, size and sha256")
        parts = PurePosixPath(str(entry.get("path") or "/")).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise Broken(f"the manifest names a file outside of the checkpoint: {entry.get('path')!r}")
    return manifest


def read_manifest(folder: Path) -> dict:
    try:
        with (folder / MANIFEST).open("rb") as file:
            return check_manifest(json.loads(file.read(MAX_MANIFEST)))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Broken(f"{folder.name}/{MANIFEST} cannot be read: {error}") from None


def manifest_hash(manifest: dict) -> str:
    """What names a checkpoint's content; equal to the runner's `Manifest.revision`."""
    return digest(canonical_bytes(manifest))


def size_of(manifest: dict) -> int:
    return sum(entry["size"] for entry in manifest["files"])


def check_folder(folder: Path, manifest: dict) -> None:
    """Read every file of the folder against `manifest`. Raises Broken naming the first difference."""
    if manifest_hash(read_manifest(folder)) != manifest_hash(manifest):
        raise Broken(f"{folder.name}/{MANIFEST} is not the manifest that was reported")
    for entry in manifest["files"]:
        path = folder / entry["path"]
        if not path.is_file():
            raise Broken(f"{entry['path']} is missing")
        if path.stat().st_size != entry["size"]:
            raise Broken(f"{entry['path']} has {path.stat().st_size} bytes, the manifest says {entry['size']}")
    for entry in manifest["files"]:
        with (folder / entry["path"]).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                raise Broken(f"{entry['path']} has other content than the manifest says")
