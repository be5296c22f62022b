"""Files that a reader finds whole or not at all, and locks that die with their holder."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Write a file so that a reader finds the old one or the new one, never a part."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Return when a file or a folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None when it is absent or no JSON object."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def lock_try(path: Path) -> int | None:
    """A descriptor that holds the lock until it is closed or its process dies; None when another holds it.

    The descriptor is not inherited by programs that the holder starts.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
