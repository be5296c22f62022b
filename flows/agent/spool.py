"""Batches that the portal has not acknowledged yet, on disk and in order. Never in the way of the ranks."""

import json
from pathlib import Path
from typing import Any

from flows.processes import write_whole

MAX_BATCHES = 5000
MAX_BYTES = 256 * 1024 * 1024


class Spool:
    """A folder of numbered batches. When it or the disk is full, the oldest telemetry is dropped and counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.num_lost = 0
        self._sizes = {int(p.stem): p.stat().st_size for p in folder.glob("*.json") if p.stem.isdigit()}

    def add(self, seq: int, batch: dict[str, Any]) -> bool:
        """Whether the batch is on disk now."""
        data = json.dumps(batch, separators=(",", ":")).encode()
        while self._sizes and (len(self._sizes) >= MAX_BATCHES or sum(self._sizes.values()) + len(data) > MAX_BYTES):
            self.remove(min(self._sizes))
            self.num_lost += 1
        try:
            write_whole(self._path(seq), data)
        except OSError:
            self.num_lost += 1
            return False
        self._sizes[seq] = len(data)
        return True

    def first(self) -> tuple[int, dict[str, Any]] | None:
        """The oldest batch."""
        while self._sizes:
            seq = min(self._sizes)
            try:
                return seq, json.loads(self._path(seq).read_bytes())
            except (OSError, ValueError):
                # Torn by a crash of the machine: nothing to send.
                self.remove(seq)
        return None

    def remove(self, seq: int) -> None:
        """It was acknowledged."""
        self._sizes.pop(seq, None)
        self._path(seq).unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._sizes)

    def newest(self) -> int:
        """The highest number in the spool, −1 when it is empty."""
        return max(self._sizes, default=-1)

    def _path(self, seq: int) -> Path:
        return self.folder / f"{seq:012d}.json"
