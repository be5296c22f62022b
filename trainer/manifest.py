"""A checkpoint folder that proves itself: every file's size and digest, and a marker written last. Free of torch."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
MARKER = "COMMITTED"
FENCE = "fence.json"
Files = dict[str, dict[str, Any]]  # name → {"bytes", "sha256"}


class FenceLost(Exception):
    """A newer attempt writes into this folder now: this one must not."""


def step_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"step_{step:08d}"


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files_of(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in (MANIFEST, MARKER):
            yield path


def commit(tmp: Path, final: Path, facts: dict[str, Any], files: Files | None = None) -> tuple[str, int]:
    """Make ``tmp`` the checkpoint ``final``: the manifest's digest and the bytes of all files.

    ``files`` are the digests taken while writing; without them the files are read. Order: files and manifest on
    disk, then the folder's name, then the marker. A crash leaves a ``.tmp`` folder or a folder without marker;
    neither is ever taken for a checkpoint.
    """
    if files is None:
        files = {
            str(path.relative_to(tmp)): {"bytes": path.stat().st_size, "sha256": digest_of(path)}
            for path in _files_of(tmp)
        }
        for path in _files_of(tmp):
            _sync_file(path)
    text = json.dumps({"version": 1, **facts, "files": files}, indent=1, sort_keys=True).encode()
    _write_synced(tmp / MANIFEST, text)
    _sync_folder(tmp)
    if final.exists():
        # Without its marker it is no checkpoint any more, even if the removal is cut short.
        (final / MARKER).unlink(missing_ok=True)
        shutil.rmtree(final)
    tmp.rename(final)
    _sync_folder(final.parent)
    digest = hashlib.sha256(text).hexdigest()
    corrupt_mark(final).unlink(missing_ok=True)
    _write_synced(final / MARKER, digest.encode())
    _sync_folder(final)
    return digest, sum(int(entry["bytes"]) for entry in files.values())


def fault_of(folder: Path, *, part: int = 0, parts: int = 1) -> str | None:
    """What is wrong with a checkpoint, in words; None when every file is as it was written.

    Of ``parts`` that check together, each reads every ``parts``-th file; all of them check the manifest.
    """
    marker, manifest = folder / MARKER, folder / MANIFEST
    if not marker.is_file():
        return "it was never completed (no commit marker)"
    if not manifest.is_file():
        return "its manifest is missing"
    try:
        text = manifest.read_bytes()
        if hashlib.sha256(text).hexdigest() != marker.read_text(errors="replace").strip():
            return "its manifest was changed after the commit"
        content = json.loads(text)
        files, step = content["files"], content["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest cannot be read"
    if folder.name != step_folder(folder.parent, step).name and re.fullmatch(r"step_\d{8,}", folder.name):
        return f"it is the checkpoint of step {step} under another name"
    present = {str(path.relative_to(folder)) for path in _files_of(folder)}
    for name in sorted(present - set(files)):
        return f"{name} does not belong to it"
    for name in sorted(set(files) - present):
        return f"{name} is missing"
    for name, entry in sorted(files.items())[part::parts]:
        fault = _file_fault(folder / name, name, entry)
        if fault:
            return fault
    return None


def _file_fault(path: Path, name: str, entry: dict[str, Any]) -> str | None:
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"{name} has {size} bytes instead of {entry['bytes']}"
        if digest_of(path) != entry["sha256"]:
            return f"{name} has another content than when it was written"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None


def facts_of(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint that ``fault_of`` found sound."""
    facts: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    return facts


def folders_by_step(root: Path) -> list[tuple[int, Path]]:
    """Checkpoint folders, newest step first; sound or not."""
    found = []
    if root.is_dir():
        for path in root.iterdir():
            match = re.fullmatch(r"step_(\d{8,})", path.name)
            if match and path.is_dir():
                found.append((int(match.group(1)), path))
    return sorted(found, reverse=True)


def newest_sound(root: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that verifies, and the newer ones that do not, with what is wrong with each."""
    bad: list[tuple[Path, str]] = []
    for _, folder in folders_by_step(root):
        fault = fault_of(folder)
        if fault is None:
            return folder, bad
        bad.append((folder, fault))
    return None, bad


def prune(root: Path, *, keep_last: int, keep_every: int, protected: set[Path]) -> list[tuple[int, Path]]:
    """Remove old checkpoints and say which: all but the last few, every n-th step, pinned and protected ones.

    One that is marked corrupt stays for whoever wants to know why, and does not count among the last few.
    """
    removed = []
    sound = [(s, f) for s, f in folders_by_step(root) if not corrupt_mark(f).exists() and (f / MARKER).is_file()]
    for place, (step, folder) in enumerate(sound):
        kept = place < keep_last or (keep_every and step % keep_every == 0)
        if kept or folder in protected or pin_mark(folder).exists():
            continue
        # Without its marker it is no checkpoint any more, even if the removal is cut short.
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        removed.append((step, folder))
    return removed


def pin_mark(folder: Path) -> Path:
    """A file beside a checkpoint: while it is there, the checkpoint is kept."""
    return folder.with_name(folder.name + ".pin")


def corrupt_mark(folder: Path) -> Path:
    """A file beside a checkpoint that did not verify, holding the reason."""
    return folder.with_name(folder.name + ".corrupt")


def corrupt_note(folder: Path, fault: str) -> None:
    """Mark a checkpoint as corrupt. It stays where it is: deleting evidence helps nobody."""
    try:
        corrupt_mark(folder).write_text(fault + "\n")
    except OSError:
        pass  # a read-only or full file system: the record says it too


def discard(folder: Path) -> None:
    """Remove a folder that never became a checkpoint."""
    shutil.rmtree(folder, ignore_errors=True)


def fence_take(root: Path, fence: str) -> None:
    """Claim the folder for this attempt and restart; refused when a newer one has it."""
    root.mkdir(parents=True, exist_ok=True)
    fence_check(root, fence)
    tmp = root / f"{FENCE}.{os.getpid()}"
    _write_synced(tmp, json.dumps({"fence": fence}).encode())
    tmp.replace(root / FENCE)
    _sync_folder(root)


def fence_check(root: Path, fence: str) -> None:
    """Raise ``FenceLost`` when a newer attempt or restart has claimed the folder."""
    try:
        held = str(json.loads((root / FENCE).read_text())["fence"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if _order(held) > _order(fence):
        raise FenceLost(f"{held} has taken over from {fence}.")


def _order(fence: str) -> tuple[str, int]:
    """Attempts by id (ids made later sort later), restarts by number."""
    attempt, _, number = fence.partition(":")
    return attempt, int(number) if number.isdigit() else 0


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
