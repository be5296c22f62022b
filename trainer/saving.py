"""Writes a checkpoint: every rank its share, digests taken from the bytes as they pass, one commit on rank 0.

The same few lines serve the trainer itself (``sync``), a thread of it (``thread``) and a process of its own
(``process``); only the group of ranks and the tensors differ.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem

from trainer import manifest


@dataclass(frozen=True)
class SaveOrder:
    """What to save where. ``facts`` go into the manifest; ``protected`` folders survive the tidying up."""

    step: int
    root: str
    fence: str
    facts: dict[str, Any]
    keep_last: int
    keep_every: int
    protected: list[str] = field(default_factory=list)

    @property
    def final(self) -> Path:
        """The checkpoint's folder once it is one."""
        return manifest.step_folder(Path(self.root), self.step)

    @property
    def unfinished(self) -> Path:
        """Where it is written."""
        return self.final.with_name(self.final.name + ".tmp")

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class SaveResult:
    """How a save ended; the same on every rank. ``reason`` is empty when the checkpoint is durable."""

    step: int
    reason: str = ""
    bytes: int = 0
    digest: str = ""
    dur_ns: int = 0
    removed: list[tuple[int, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def save_and_commit(order: SaveOrder, tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> SaveResult:
    """Write, prove, rename, mark. Collective over ``group``; a failure on one rank is a failure on all.

    A failed save leaves no half-written folder behind, and every older checkpoint as it was.
    """
    begin = time.perf_counter_ns()
    first = dist.get_rank(group) == 0
    try:
        files = _write_share(order.unfinished, tensors, group)
        shares: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(shares, files, group=group)
        outcome: list[Any] = [_commit(order, shares) if first else None]
        dist.broadcast_object_list(outcome, group=group, group_src=0)
        reason, size, digest, removed = outcome[0]
    except (OSError, RuntimeError, dcp.CheckpointException) as error:
        reason, size, digest, removed = reason_of(error), 0, "", []
    if reason and first:
        shutil.rmtree(order.unfinished, ignore_errors=True)
    return SaveResult(order.step, reason, size, digest, time.perf_counter_ns() - begin, removed)


def _write_share(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> manifest.Files:
    writer = DigestWriter(folder)
    dcp.save(dict(tensors), storage_writer=writer, process_group=group)
    return writer.files()


def _commit(order: SaveOrder, shares: list[manifest.Files]) -> tuple[str, int, str, list[tuple[int, str]]]:
    files = {name: entry for share in shares for name, entry in share.items()}
    try:
        if order.fence:
            manifest.fence_check(Path(order.root), order.fence)
        facts = {**order.facts, "step": order.step, "fence": order.fence}
        digest, size = manifest.commit(order.unfinished, order.final, facts, files)
        removed = manifest.prune(
            Path(order.root),
            keep_last=order.keep_last,
            keep_every=order.keep_every,
            protected={Path(p) for p in order.protected},
        )
    except (OSError, manifest.FenceLost) as error:
        return reason_of(error), 0, "", []
    return "", size, digest, [(step, str(path)) for step, path in removed]


def reason_of(error: BaseException) -> str:
    """The innermost cause in a few words: what a person has to mend."""
    if isinstance(error, dcp.CheckpointException):
        causes = [part[0] if isinstance(part, tuple) else part for part in error.failures.values()]
        text = str(causes[0]) if causes else str(error)
    else:
        text = str(error)
    if "Errno 28" in text or "No space left" in text:
        return "no space is left on the checkpoint's file system"
    if "Errno 27" in text or "File too large" in text:
        return "the file system takes no file of this size"
    if "Errno 122" in text or "quota exceeded" in text.lower():
        return "the disk quota of the checkpoint's file system is used up"
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else type(error).__name__


class DigestWriter(dcp.FileSystemWriter):
    """Writes files as torch does, fsynced, and knows size and SHA-256 of each without reading it again."""

    def __init__(self, folder: Path) -> None:
        # No copy-ahead: it uses the GPU, and these tensors are in memory already.
        super().__init__(folder, single_file_per_rank=True, sync_files=True, thread_count=1, per_thread_copy_ahead=0)
        self.fs = _DigestFiles()

    def files(self) -> manifest.Files:
        """What this rank has written."""
        return cast(_DigestFiles, self.fs).written


class _DigestFiles(FileSystem):
    def __init__(self) -> None:
        self.written: manifest.Files = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if "w" not in mode:
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        out = _DigestFile(Path(path))
        try:
            yield out
        except RuntimeError:
            # torch's writer covers a failed write with a complaint about itself.
            if out.error is not None:
                raise out.error from None
            raise
        finally:
            out.close()
        self.written[Path(path).name] = {"bytes": out.size, "sha256": out.hash.hexdigest()}

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _DigestFile:
    """A file that is only appended to, and hashed on the way."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self.hash = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.hash.update(view)
        done = 0
        try:
            while done < len(view):
                done += self._file.write(view[done:]) or 0
        except OSError as error:
            self.error = self.error or error
            raise
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


__all__ = ["DigestWriter", "SaveOrder", "SaveResult", "reason_of", "save_and_commit"]
