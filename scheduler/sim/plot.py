"""A replay as one SVG: who held which GPUs when, and how many were held."""

from collections.abc import Iterator
from html import escape

from scheduler.sim.replay import Outcome, Span

WIDTH, LEFT, RIGHT = 1200, 70, 20
TOP, GANTT, GAP, CURVE, BOTTOM = 46, 420, 46, 150, 40
# Colours that differ in lightness too, so that they can be told apart without colour vision.
COLOURS = ("#3b6fb6", "#e08b2d", "#4f9d69", "#b64a5a", "#7d62a8", "#8a7a52", "#4aa3b5", "#c777a6")
# Thinner than this a span cannot be seen, and many of them would make a file of megabytes.
LEAST_PX = 0.4
DAY_S = 86_400


def svg(outcome: Outcome, title: str) -> str:
    """The drawing. Rows are nodes; colours are teams, or sizes where the trace names no teams."""
    spans = sorted(outcome.spans, key=lambda s: s.start_s)
    begin = min((s.start_s for s in spans), default=0.0)
    end = max((s.end_s for s in spans), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / max(end - begin, 1e-9)
    height = TOP + GANTT + GAP + CURVE + BOTTOM
    groups = _groups(spans)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="15" fill="#222222">{escape(title)}</text>',
        *_legend(groups),
        *_gantt(spans, groups, begin, scale),
        *_curve(spans, outcome.num_gpus, begin, end),
        *_days(begin, end, scale),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _group(span: Span) -> str:
    return span.job.trace.team or f"{span.job.num_gpus} GPUs"


def _groups(spans: list[Span]) -> dict[str, str]:
    """The groups by the GPU time that they held, most first, with their colours; the last one is shared."""
    held: dict[str, float] = {}
    for span in spans:
        name = _group(span)
        held[name] = held.get(name, 0) + (span.end_s - span.start_s) * span.job.num_gpus
    names = sorted(held, key=lambda name: -held[name])
    return {name: COLOURS[min(at, len(COLOURS) - 1)] for at, name in enumerate(names)}


def _legend(groups: dict[str, str]) -> Iterator[str]:
    x = LEFT
    for name, colour in list(groups.items())[: len(COLOURS)]:
        yield f'<rect x="{x}" y="26" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 14}" y="35" fill="#444444">{escape(name)}</text>'
        x += 28 + 7 * len(name)


def _gantt(spans: list[Span], groups: dict[str, str], begin: float, scale: float) -> Iterator[str]:
    rows = 1 + max((node for span in spans for node, _ in span.placement), default=0)
    tall = GANTT / rows
    most = max((gpus for span in spans for _, gpus in span.placement), default=1)
    yield f'<text x="8" y="{TOP + 12}" fill="#444444">nodes</text>'
    yield f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{GANTT}" fill="#f3f4f6"/>'
    # Spans that share a node lie in lanes of it, as high as their part of the node's GPUs.
    lanes: dict[int, list[tuple[float, int, int]]] = {}
    for span in spans:
        width = (span.end_s - span.start_s) * scale
        for node, gpus in span.placement:
            busy = [lane for lane in lanes.get(node, ()) if lane[0] > span.start_s]
            at = _gap(busy, gpus)
            lanes[node] = [*busy, (span.end_s, at, gpus)]
            if width < LEAST_PX:
                continue
            y = TOP + node * tall + min(at, most - gpus) / most * tall
            x = LEFT + (span.start_s - begin) * scale
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(gpus / most * tall, 0.3):.1f}" '
                f'fill="{groups[_group(span)]}"/>'
            )


def _gap(busy: list[tuple[float, int, int]], gpus: int) -> int:
    """The first GPU from which so many are free."""
    at = 0
    for _, first, count in sorted(busy, key=lambda lane: lane[1]):
        if first - at >= gpus:
            break
        at = max(at, first + count)
    return at


def _curve(spans: list[Span], num_gpus: int, begin: float, end: float) -> Iterator[str]:
    """The part of all GPUs that is held, as the mean of each column of pixels."""
    columns = WIDTH - LEFT - RIGHT
    step = max(end - begin, 1e-9) / columns
    held = [0.0] * (columns + 1)
    for span in spans:
        first, last = int((span.start_s - begin) / step), int((span.end_s - begin) / step)
        for column in range(first, min(last, columns) + 1):
            lo, hi = begin + column * step, begin + (column + 1) * step
            held[column] += max(0.0, min(hi, span.end_s) - max(lo, span.start_s)) * span.job.num_gpus
    top = TOP + GANTT + GAP
    points = " ".join(
        f"{LEFT + at},{top + CURVE * (1 - min(1.0, value / step / num_gpus)):.1f}"
        for at, value in enumerate(held[:columns])
    )
    yield f'<text x="8" y="{top + 12}" fill="#444444">held</text>'
    for part in (0, 50, 100):
        y = top + CURVE * (1 - part / 100)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#d8dbe0"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#444444">{part} %</text>'
    yield f'<polyline points="{points}" fill="none" stroke="#3b6fb6" stroke-width="1"/>'


def _days(begin: float, end: float, scale: float) -> Iterator[str]:
    days = (end - begin) / DAY_S
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 10**9) if days / s <= 16)
    y = TOP + GANTT + GAP + CURVE + 18
    for day in range(0, int(days) + 1, step):
        x = LEFT + day * DAY_S * scale
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{y - 14}" stroke="#00000018"/>'
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle" fill="#444444">day {day}</text>'
