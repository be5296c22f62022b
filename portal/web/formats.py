"""Numbers as people read them. Pure, but for the language of the units."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.utils.translation import gettext as _

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def duration(seconds: float | None) -> str:
    """Two units at most: ``45 s``, ``3 min 12 s``, ``2 h``, ``4 d 3 h``; a dash for None."""
    if seconds is None:
        return "–"
    if 0 < seconds < 10:
        return f"{seconds:.1f} {_('s')}"
    whole = max(0, round(seconds))
    parts: list[str] = []
    for unit, length in ((_("d"), 86_400), (_("h"), 3600), (_("min"), 60), (_("s"), 1)):
        count, whole = divmod(whole, length)
        if parts or count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            break
    if len(parts) == 2 and parts[1].startswith("0 "):
        parts.pop()
    return " ".join(parts) or f"0 {_('s')}"


def num_bytes(count: int | None) -> str:
    """``39.8 MiB``; a dash for None."""
    if count is None:
        return "–"
    value = float(count)
    for unit in BYTE_UNITS:
        if value < 1024 or unit == BYTE_UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def gpu_hours(gpu_s: float) -> str:
    """GPU-hours with as many digits as matter: small jobs use thousandths."""
    hours = gpu_s / 3600
    return f"{hours:,.1f}" if hours >= 100 else f"{hours:.2f}" if hours >= 1 else f"{hours:.4f}"


def instant(at: datetime | None, now: datetime) -> str:
    """The time in UTC, with the date unless it is today's."""
    if at is None:
        return "–"
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    return f"{at:%d %b %H:%M}" if at.year == now.year else f"{at:%Y-%m-%d}"


def tenths(values: Mapping[str, float]) -> dict[str, float]:
    """Shares in percent with one decimal that sum to exactly 100.0 (all zero when there is nothing).

    Plain rounding may show 99.9 or 100.1: the shares that lost most by rounding down get the missing tenths.
    """
    whole = sum(values.values())
    if whole <= 0:
        return dict.fromkeys(values, 0.0)
    exact = {key: 1000 * value / whole for key, value in values.items()}
    floors = {key: int(value) for key, value in exact.items()}
    missing = 1000 - sum(floors.values())
    order: Sequence[str] = sorted(exact, key=lambda key: floors[key] - exact[key])
    for key in order[:missing]:
        floors[key] += 1
    return {key: value / 10 for key, value in floors.items()}
