"""Reading the log files of ranks: only inside the attempt's run folder, and never whole into memory."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

from portal.errors import BadRequest, NotFound
from portal.jobs.models import Attempt
from portal.jobs.telemetry import LogFile

MAX_TAIL_BYTES = 512 * 1024
MAX_SCAN_BYTES = 64 * 1024 * 1024


def log_path(attempt: Attempt, row: LogFile) -> Path:
    """The file's path, proved to lie inside the attempt's run folder once every link is followed."""
    folder = (settings.JOBS_DIR / attempt.job_id / "attempts" / attempt.pk).resolve()
    path = (folder / row.path).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        raise NotFound("This log file is not there any more.")
    return path


def log_tail(attempt: Attempt, row: LogFile, *, num_lines: int, contains: str = "") -> list[str]:
    """The last lines of a log file, those that hold the text when one is given."""
    path = log_path(attempt, row)
    size = path.stat().st_size
    span = MAX_SCAN_BYTES if contains else MAX_TAIL_BYTES
    with path.open("rb") as file:
        file.seek(max(0, size - span))
        data = file.read(span)
    if size > span:
        data = data[data.find(b"\n") + 1 :]
    lines = [clean(line) for line in data.split(b"\n")]
    if lines and not lines[-1]:
        lines.pop()
    if contains:
        lines = [line for line in lines if contains in line]
    return lines[-num_lines:]


def clean(line: bytes) -> str:
    """A line as text: unreadable bytes replaced, terminal escapes and control characters taken out."""
    text = line.decode("utf-8", "replace").split("\r")[-1] if b"\r" in line else line.decode("utf-8", "replace")
    text = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text)
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text)


def log_find(attempt: Attempt, *, rank: int, stream: str, restart: int | None) -> LogFile:
    """The rank's newest file of the stream, or of the restart asked for."""
    if stream not in ("stdout", "stderr"):
        raise BadRequest("stream must be stdout or stderr.")
    rows = LogFile.objects.filter(attempt=attempt, rank=rank, stream=stream)
    if restart is not None:
        rows = rows.filter(restart=restart)
    row = rows.order_by("-restart").first()
    if row is None:
        raise NotFound(f"Rank {rank} has no {stream} yet.")
    return row


def log_bytes(path: Path) -> Iterator[bytes]:
    """The file in pieces, for a download."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while piece := file.read(64 * 1024):
            yield piece
