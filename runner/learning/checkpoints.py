"""Checkpoints that are either complete or absent.

1. Everything is written into `step_N.tmp-<random>`, each file flushed to the disk.
2. `manifest.json` then lists every file with size and SHA-256.
3. The folders are flushed and the folder renamed to `step_N`: the rename is what completes it.

A folder named `step_N` that fails `verify` was damaged later. Leftovers of killed writes go with `sweep`.
Layout: model/ (a Hugging Face folder) or adapter/ (peft), trainer/ (optimizer, counters, RNG), driver.json.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.contract.canonical import canonical_bytes, digest

MANIFEST = "manifest.json"
FORMAT = 1
_COMPLETE = re.compile(r"step_(\d+)$")
_LEFTOVER = re.compile(r"step_\d+\.(tmp|old)-[0-9a-f]+$")


class BrokenCheckpoint(Exception):
    """The folder is no complete checkpoint; the message names the first file that is wrong."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint; `path` is relative and uses forward slashes."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is. `revision`, the digest of the manifest itself, names its content."""

    step: int
    stage: int
    stage_type: str
    policy_version: int
    adapter: bool
    config_hash: str
    topology: dict[str, Any]
    versions: dict[str, str]
    rng: dict[str, Any]
    files: list[FileEntry] = field(default_factory=list)
    format: int = FORMAT

    @property
    def revision(self) -> str:
        """64 hexadecimal digits; equal content has equal revisions."""
        return digest(canonical_bytes(asdict(self)))


def write(root: Path, manifest: Manifest, contents: Callable[[Path], None]) -> Path:
    """Write `root/step_N` with what `contents(folder)` puts into a folder; returns its path.

    An older checkpoint of the same step is replaced. On any error nothing but a leftover remains.
    """
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"step_{manifest.step}"
    work = root / f"{target.name}.tmp-{secrets.token_hex(6)}"
    work.mkdir()
    try:
        contents(work)
        files = [_flushed(work, path) for path in sorted(work.rglob("*")) if path.is_file()]
        document = asdict(manifest) | {"files": [asdict(entry) for entry in files]}
        (work / MANIFEST).write_bytes(canonical_bytes(document))
        _flush(work / MANIFEST)
        for folder in [*(path for path in work.rglob("*") if path.is_dir()), work]:
            _flush(folder)
        _put_in_place(work, target)
    except Exception:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return target


def _put_in_place(work: Path, target: Path) -> None:
    aside = target.with_name(f"{target.name}.old-{secrets.token_hex(6)}")
    replaced = target.exists()
    if replaced:
        os.rename(target, aside)
    os.rename(work, target)
    _flush(target.parent)
    if replaced:
        shutil.rmtree(aside)


def _flushed(root: Path, path: Path) -> FileEntry:
    _flush(path)
    return FileEntry(path.relative_to(root).as_posix(), path.stat().st_size, _sha256(path))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(path: Path) -> Manifest:
    """The manifest of a finished folder, its files unchecked. Raises BrokenCheckpoint."""
    found = _COMPLETE.fullmatch(path.name)
    if not found:
        raise BrokenCheckpoint(f"{path.name}: not named step_N, so its write never finished")
    try:
        document = json.loads((path / MANIFEST).read_bytes())
        entries = [FileEntry(**entry) for entry in document["files"]]
        manifest = Manifest(**{**document, "files": entries})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenCheckpoint(f"{path.name}/{MANIFEST}: unreadable ({error})") from None
    if manifest.format > FORMAT:
        raise BrokenCheckpoint(f"{path.name}: format {manifest.format} is newer than {FORMAT}; upgrade this node")
    if manifest.step != int(found.group(1)):
        raise BrokenCheckpoint(f"{path.name}: its manifest is of step {manifest.step}")
    return manifest


def verify(path: Path) -> Manifest:
    """Recompute every size and hash. Raises BrokenCheckpoint naming the first difference."""
    manifest = read_manifest(path)
    present = {item.relative_to(path).as_posix() for item in path.rglob("*") if item.is_file()} - {MANIFEST}
    listed = {entry.path for entry in manifest.files}
    if present != listed:
        raise BrokenCheckpoint(f"{path.name}: files differ from the manifest: {sorted(present ^ listed)}")
    for entry in manifest.files:
        size = (path / entry.path).stat().st_size
        if size != entry.size:
            raise BrokenCheckpoint(f"{path.name}/{entry.path}: {size} bytes, the manifest says {entry.size}")
        if _sha256(path / entry.path) != entry.sha256:
            raise BrokenCheckpoint(f"{path.name}/{entry.path}: content does not match its hash")
    return manifest


def list_complete(root: Path) -> list[Path]:
    """Folders of finished writes, by step. Their content is not verified."""
    found = [(int(match.group(1)), path) for path in root.glob("step_*") if (match := _COMPLETE.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def latest(root: Path) -> Path | None:
    """The newest checkpoint that passes `verify`."""
    for path in reversed(list_complete(root)):
        try:
            verify(path)
        except BrokenCheckpoint:
            continue
        return path
    return None


def sweep(root: Path) -> list[str]:
    """Remove leftovers of killed writes; a checkpoint that was being replaced comes back. Call with no writer alive."""
    removed = []
    for path in sorted(root.glob("step_*")):
        if not _LEFTOVER.fullmatch(path.name):
            continue
        original = path.with_name(path.name.partition(".")[0])
        if ".old-" in path.name and not original.exists():
            os.rename(path, original)
            continue
        shutil.rmtree(path)
        removed.append(path.name)
    return removed


def remove(path: Path) -> None:
    """Delete a checkpoint so that an interruption leaves a leftover, never half a checkpoint."""
    doomed = path.with_name(f"{path.name}.tmp-{secrets.token_hex(6)}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def export_huggingface(path: Path, target: Path, base: Path | None = None) -> Path:
    """Write the checkpoint's policy as a plain Hugging Face folder; an adapter is merged into its base.

    `base` overrides where the adapter's base model lies. Raises BrokenCheckpoint.
    """
    manifest = verify(path)
    if target.is_dir():
        return target
    work = target.with_name(f"{target.name}.tmp-{secrets.token_hex(6)}")
    work.parent.mkdir(parents=True, exist_ok=True)
    if manifest.adapter:
        _merge_adapter(path / "adapter", work, base)
    else:
        shutil.copytree(path / "model", work)
    os.rename(work, target)
    return target


def _merge_adapter(adapter: Path, target: Path, base: Path | None) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = base or Path(json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"])
    if not base.is_dir():
        raise BrokenCheckpoint(f"{adapter}: its base model {str(base)!r} is not on this node; pass the folder it lies in")
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", local_files_only=True)
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(target)
    AutoTokenizer.from_pretrained(base, local_files_only=True).save_pretrained(target)
