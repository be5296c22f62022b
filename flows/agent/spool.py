"""Batches that the portal has not acknowledged yet, on disk and in order. Never in the way of the ranks."""

import json
import threading
from pathlib import Path
from typing import Any

from flows.files import read_json, sync, write_whole

MAX_BATCHES = 5000
MAX_BYTES = 256 * 1024 * 1024
# What a disk refuses is kept in memory, but the agent must stay small beside its ranks.
MAX_MEMORY_BYTES = 16 * 1024 * 1024


class Spool:
    """A folder of numbered batches; each carries the state of its agent at that moment.

    So a batch and the state behind it are one file: after a crash nothing is sent under two numbers and
    nothing is skipped. When spool or disk are full, the oldest batches go, and their number is told.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_lost = 0
        self.lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        self._memory: dict[int, bytes] = {}
        self._unsynced: set[int] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._sizes = {int(p.stem): p.stat().st_size for p in folder.glob("*.json") if p.stem.isdigit()}
        except OSError:
            pass  # a full disk: batches stay in memory until there is room

    def add(self, seq: int, report: dict[str, Any], state: dict[str, Any]) -> bool:
        """Whether batch and state are on disk; they are kept in memory if not."""
        data = json.dumps({"report": report, "state": state}, separators=(",", ":")).encode()
        with self.lock:
            while self._sizes and self._is_full(len(data)):
                self._remove(min(self._sizes))
                self.num_lost += 1
            self._sizes[seq] = len(data)
            try:
                write_whole(self._path(seq), data)
                write_whole(self.state_path, json.dumps(state).encode())
            except OSError:
                self._memory[seq] = data
                return False
            self._unsynced.add(seq)
            return True

    def first(self) -> tuple[int, dict[str, Any]] | None:
        """The oldest batch."""
        with self.lock:
            while self._sizes:
                seq = min(self._sizes)
                try:
                    data = self._memory.get(seq) or self._path(seq).read_bytes()
                    return seq, dict(json.loads(data)["report"])
                except (OSError, ValueError, KeyError, TypeError):
                    # Torn by a crash of the machine: nothing to send.
                    self._remove(seq)
                    self.num_lost += 1
            return None

    def remove(self, seq: int, *, lost: bool = False) -> None:
        """It was acknowledged, or will never be."""
        with self.lock:
            self._remove(seq)
            self.num_lost += lost

    def sync(self) -> None:
        """Put on the disk for good what waits here; called while the portal is away, for waiting may be long."""
        with self.lock:
            waiting, self._unsynced = self._unsynced & self._sizes.keys(), set()
        try:
            for seq in waiting:
                sync(self._path(seq))
            if waiting:
                sync(self.folder)
        except OSError:
            pass  # acknowledged meanwhile, or a disk that is full: the batch is where it is

    def state(self) -> dict[str, Any]:
        """The newest state that any batch or the state file has."""
        states = [read_json(self.state_path) or {}]
        if self._sizes:
            batch = read_json(self._path(max(self._sizes))) or {}
            states.append(dict(batch.get("state") or {}))
        return max(states, key=lambda s: int(s.get("next_seq", 0)))

    @property
    def state_path(self) -> Path:
        """The agent's state file."""
        return self.folder.parent / "state.json"

    def __len__(self) -> int:
        return len(self._sizes)

    def _is_full(self, num_bytes: int) -> bool:
        in_memory = sum(len(data) for data in self._memory.values())
        return (
            len(self._sizes) >= MAX_BATCHES
            or sum(self._sizes.values()) + num_bytes > MAX_BYTES
            or in_memory + num_bytes > MAX_MEMORY_BYTES
        )

    def _remove(self, seq: int) -> None:
        self._sizes.pop(seq, None)
        self._unsynced.discard(seq)
        if self._memory.pop(seq, None) is None:
            self._path(seq).unlink(missing_ok=True)

    def _path(self, seq: int) -> Path:
        return self.folder / f"{seq:012d}.json"
