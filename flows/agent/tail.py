"""Reading what ranks append to their files, from where it was left, also by an agent before."""

from pathlib import Path
from typing import Any

from trainer.records import read_records

READ_BYTES = 1024 * 1024
# A backlog beyond this is skipped up to its end: the newest records decide what happens to the gang.
MAX_BACKLOG_BYTES = 32 * 1024 * 1024


class RecordTail:
    """One rank's record file, read from an offset."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset
        self.num_skipped_bytes = 0

    def read(self) -> list[tuple[dict[str, Any], int]]:
        """Records that are new since the last call, each with the offset behind it; torn lines wait."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size - self.offset > MAX_BACKLOG_BYTES:
                    self._skip_to(size - READ_BYTES)
                file.seek(self.offset)
                data = file.read(READ_BYTES)
        except OSError:
            return []
        found = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            end += 1
            records, _ = read_records(data[start:end])
            found += [(record, self.offset + end) for record in records]
            start = end
        if not start and len(data) == READ_BYTES:
            self._skip_to(self.offset + len(data))  # a line without end is no record
        self.offset += start
        return found

    def _skip_to(self, offset: int) -> None:
        self.num_skipped_bytes += offset - self.offset
        self.offset = offset


def last_text(path: Path, num_bytes: int) -> str:
    """The end of a text file; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - num_bytes))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
