"""Server-made drawings: places in percent, so that a drawing fits any width without a script or a style."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """A stretch of a bar: from ``x`` on, ``width`` long, both in percent of the bar."""

    x: float
    width: float
    css: str
    label: str
    note: str = ""

    @property
    def x_text(self) -> str:
        """As an SVG attribute, in any language with a decimal point."""
        return f"{self.x:.3f}%"

    @property
    def width_text(self) -> str:
        """As an SVG attribute; what is there is never too thin to be seen."""
        return f"{max(self.width, 0.15):.3f}%"


@dataclass(frozen=True)
class Share:
    """A part of a stacked bar before it has its place."""

    css: str
    label: str
    value: float
    note: str = ""


def stacked(shares: Iterable[Share], whole: float | None = None) -> list[Segment]:
    """The shares side by side; ``whole`` is the length of the bar, by default their sum."""
    kept = [share for share in shares if share.value > 0]
    total = whole if whole else sum(share.value for share in kept)
    if total <= 0:
        return []
    segments, x = [], 0.0
    for share in kept:
        width = 100 * share.value / total
        segments.append(Segment(x, width, share.css, share.label, share.note))
        x += width
    return segments


@dataclass(frozen=True)
class Tick:
    """A mark on a time axis."""

    x: float
    label: str

    @property
    def x_text(self) -> str:
        """As an SVG attribute."""
        return f"{self.x:.3f}%"


STEPS_S: Sequence[int] = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip


def tick_step_s(span_s: float, most: int = 8) -> int:
    """The smallest round step that gives at most so many marks."""
    for step in STEPS_S:
        if span_s / step <= most:
            return step
    weeks = int(span_s / most / STEPS_S[-1]) + 1
    return weeks * STEPS_S[-1]
