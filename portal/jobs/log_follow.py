"""Following a log: what was written after a given byte, line by line."""

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async

from portal.jobs.logs import MAX_TAIL_BYTES, clean, log_path
from portal.jobs.models import Attempt
from portal.jobs.telemetry import LogFile


def log_since(attempt: Attempt, row: LogFile, *, after: int, contains: str = "") -> tuple[list[str], int]:
    """The whole lines that begin at byte ``after`` or later, and the byte from which the next call goes on.

    A torn last line is left for the next call. When more came than one call gives, the oldest of it is skipped.
    """
    path = log_path(attempt, row)
    size = path.stat().st_size
    if size <= after:
        return [], min(after, size)
    begin = max(after, size - MAX_TAIL_BYTES)
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read(size - begin)
    end = data.rfind(b"\n") + 1
    if begin > after:
        first = data.find(b"\n") + 1
        lines = data[first:end]
    else:
        lines = data[:end]
    texts = [clean(line) for line in lines.split(b"\n")[:-1]]
    return [text for text in texts if contains in text], begin + end


async def in_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces one by one, each read in a thread while the event loop serves others."""

    def following() -> bytes | None:
        return next(pieces, None)

    while (piece := await sync_to_async(following)()) is not None:
        yield piece
