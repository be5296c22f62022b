"""Where the time of a held GPU went. Pure: intervals in, nanoseconds per cause out, and they add up exactly.

A rank owns one GPU. Its records cover most of the time between its start and its end, in windows that do
not overlap; what no window covers is explained by what the attempt was doing then (its *marks*).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DAY_NS: Final = 86_400_000_000_000


@dataclass(frozen=True)
class Window:
    """A stretch of a rank's time and its seconds per cause, as its agent summed them."""

    from_ns: int
    to_ns: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Mark:
    """From this instant until the next mark, time that no window covers has this cause."""

    at_ns: int
    cause: str


@dataclass(frozen=True)
class RestartSpan:
    """The instants of one gang of ranks that explain gaps; None: it did not come to that."""

    began_ns: int
    broke_ns: int | None
    seen_ns: int | None
    hung: bool = False


def marks_of(restarts: Sequence[RestartSpan], *, held_ns: int, stop_ns: int | None) -> list[Mark]:
    """The marks of an attempt: starting, idle while broken, starting again, tearing down."""
    marks = [Mark(held_ns, "startup")]
    for index, span in enumerate(restarts):
        if index:
            marks.append(Mark(span.began_ns, "startup"))
        if span.broke_ns is not None:
            if span.hung and span.seen_ns is not None:
                marks.append(Mark(span.broke_ns, "hang_detection"))
                marks.append(Mark(span.seen_ns, "idle_hold"))
            else:
                marks.append(Mark(span.broke_ns, "idle_hold"))
    if stop_ns is not None:
        marks.append(Mark(stop_ns, "teardown"))
    return sorted(marks, key=lambda m: m.at_ns)


def gpu_time(held: tuple[int, int], windows: Iterable[Window], marks: Sequence[Mark]) -> dict[tuple[int, str], int]:
    """Nanoseconds by (day since 1970 in UTC, cause) of one GPU; they sum to ``held[1] - held[0]`` exactly."""
    start, end = held
    totals: dict[tuple[int, str], int] = {}
    cursor = start
    for window in sorted(windows, key=lambda w: (w.from_ns, w.to_ns)):
        # Clocks of nodes differ a little: a window counts only inside the held time and after the one before.
        begin, stop = max(window.from_ns, cursor), min(window.to_ns, end)
        if stop <= begin:
            continue
        _add_gap(totals, cursor, begin, marks)
        for piece_start, piece_end in _days(begin, stop):
            _add_shares(totals, piece_start, piece_end, window.seconds)
        cursor = stop
    _add_gap(totals, cursor, end, marks)
    return totals


def _add_gap(totals: dict[tuple[int, str], int], start: int, end: int, marks: Sequence[Mark]) -> None:
    if end <= start:
        return
    cause = "startup"
    bounds: list[tuple[int, str]] = []
    for mark in marks:
        if mark.at_ns <= start:
            cause = mark.cause
        elif mark.at_ns < end:
            bounds.append((mark.at_ns, mark.cause))
    cursor = start
    for at, following in [*bounds, (end, "")]:
        for piece_start, piece_end in _days(cursor, at):
            _add(totals, piece_start, cause, piece_end - piece_start)
        cursor, cause = at, following


def _add_shares(totals: dict[tuple[int, str], int], start: int, end: int, seconds: Mapping[str, float]) -> None:
    """Split a stretch in proportion to its seconds; the largest share takes what rounding leaves."""
    length, whole = end - start, sum(seconds.values())
    if whole <= 0:
        _add(totals, start, "productive", length)
        return
    shares = {cause: int(length * value / whole) for cause, value in seconds.items() if value > 0}
    largest = max(shares, key=lambda c: (shares[c], c))
    shares[largest] += length - sum(shares.values())
    for cause, share in shares.items():
        _add(totals, start, cause, share)


def _add(totals: dict[tuple[int, str], int], at_ns: int, cause: str, length: int) -> None:
    key = (at_ns // DAY_NS, cause)
    totals[key] = totals.get(key, 0) + length


def _days(start: int, end: int) -> Iterable[tuple[int, int]]:
    """The stretch cut at midnight (UTC)."""
    while start < end:
        stop = min(end, (start // DAY_NS + 1) * DAY_NS)
        yield start, stop
        start = stop
