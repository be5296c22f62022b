"""What a rank writes down about itself: one JSON object a line, appended, never rewritten.

No network and no lock on the hot path: a record is one ``write`` to an append-only file of the rank's own.
Instants are integers ``t_ns`` (Unix time), durations ``dur_ns``. This module is free of torch.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

FINISHED: Final = 0
FAILED: Final = 1
STOPPED: Final = 90  # saved and left because it was asked to
REFUSED: Final = 93  # the same run would fail again: no retry

SEGMENTS: Final = (
    "data_wait",
    "forward",
    "backward",
    "comm_wait",
    "comm_transfer",
    "optimizer",
    "checkpoint",
    "other",
)


class RecordWriter:
    """Appends records to one file; without a path it drops them (a run outside the platform)."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._fd = -1
        self.path = str(path) if path else None
        self.spent_ns = 0  # what record-keeping itself has cost
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one record. Telemetry never stops training: a full disk loses the record only."""
        if self._fd < 0:
            return
        begin = time.perf_counter_ns()
        record = {"k": kind, "t_ns": time.time_ns(), **fields}
        line = json.dumps(record, separators=(",", ":"), allow_nan=True) + "\n"
        try:
            os.write(self._fd, line.encode())
        except OSError:
            pass
        self.spent_ns += time.perf_counter_ns() - begin

    def phase(self, name: str, event: str) -> None:
        """A phase begins or ends."""
        self.write("phase", name=name, event=event)

    def close(self) -> None:
        """No more records."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def writer_from_environment() -> RecordWriter:
    """The writer for ``TRAINYARD_RECORDS``."""
    return RecordWriter(os.environ.get("TRAINYARD_RECORDS"))


def write_start(writer: RecordWriter) -> None:
    """The first record of a rank: who it is, written before anything slow is imported."""
    writer.write(
        "start",
        rank=int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        node_rank=int(os.environ.get("GROUP_RANK", "0")),
        restart=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        pid=os.getpid(),
    )


def read_records(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """The whole records at the start of ``data``, and how many bytes they take.

    A torn last line is left for the next read; a line that is no record is skipped.
    """
    end = data.rfind(b"\n") + 1
    return [r for line in data[:end].splitlines() if (r := _parse(line)) is not None], end


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "k" in record else None


def records_in(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole record of a file."""
    yield from read_records(path.read_bytes())[0]
