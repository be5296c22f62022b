"""Reading what ranks append to their record files, from where it was left, also by an agent before."""

from pathlib import Path
from typing import Any

from trainer.records import read_records

MAX_READ_BYTES = 4 * 1024 * 1024


class RecordTail:
    """One rank's record file, read from an offset."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset

    def read(self) -> list[dict[str, Any]]:
        """Whole records that are new since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(MAX_READ_BYTES)
        except OSError:
            return []
        records, used = read_records(data)
        if not used and len(data) == MAX_READ_BYTES:
            used = len(data)  # one endless line is no record
        self.offset += used
        return records


def last_bytes(path: Path, count: int) -> str:
    """The end of a text file."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - count))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
