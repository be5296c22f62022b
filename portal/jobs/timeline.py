"""The attempts of a job on one time axis: what each was doing when, from the instants in its rows. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from portal.jobs.models import Attempt, Restart
from portal.web.formats import duration
from portal.web.svg import Segment, Tick, tick_step_s

PHASES: Final[dict[str, str | Promise]] = {
    "waiting": _("waiting for GPUs"),
    "starting": _("starting agents"),
    "joining": _("ranks start and meet"),
    "restoring": _("loading, up to the first step"),
    "running": _("training"),
    "broken": _("broken, until decided"),
    "stopping": _("saving and stopping"),
}


@dataclass(frozen=True)
class Phase:
    """A stretch of time with one name."""

    name: str
    begin: datetime
    end: datetime


@dataclass(frozen=True)
class Row:
    """One attempt's line of the drawing."""

    attempt: Attempt
    segments: list[Segment]
    marks: list[Tick]


@dataclass(frozen=True)
class Timeline:
    """The drawing: one row an attempt, and marks of the shared axis (from the submission on)."""

    rows: list[Row]
    ticks: list[Tick]
    phases: list[tuple[str, str | Promise]]


def attempt_phases(attempt: Attempt, restarts: Sequence[Restart], now: datetime) -> list[Phase]:
    """The attempt's time from its decision to its end (or now), without gaps."""
    end = attempt.ended_at or now
    bounds: list[tuple[str, datetime]] = [("starting", attempt.created_at)]
    for restart in restarts:
        if restart.number:
            bounds.append(("joining", restart.began_at))
        bounds += _marks(restart, attempt)
    if attempt.stop_requested_at is not None:
        bounds.append(("stopping", attempt.stop_requested_at))
    phases: list[Phase] = []
    for index, (name, begin) in enumerate(bounds):
        # Clocks of nodes differ a little: nothing begins before what came before it.
        begin = min(max(begin, phases[-1].end if phases else begin), end)
        until = bounds[index + 1][1] if index + 1 < len(bounds) else end
        until = min(max(until, begin), end)
        if phases and phases[-1].name == name:
            phases[-1] = Phase(name, phases[-1].begin, until)
        elif until > begin:
            phases.append(Phase(name, begin, until))
    return phases


def _marks(restart: Restart, attempt: Attempt) -> Iterator[tuple[str, datetime]]:
    """The instants of one gang that begin a phase."""
    if restart.rendezvous_at:
        yield "joining", restart.rendezvous_at
    if restart.first_step_at:
        if restart.first_rank_at:
            yield "restoring", restart.first_rank_at
        yield "running", restart.first_step_at
    elif attempt.job.spec["workload"]["kind"] == "trainer":
        if restart.first_rank_at:
            yield "restoring", restart.first_rank_at
    elif restart.rendezvous_at:
        # A program that reports no steps: it works from the moment when all ranks run.
        ran_at = attempt.running_at if restart.number == 0 else None
        if ran_at or restart.number or restart.first_rank_at:
            yield "running", ran_at or restart.first_rank_at or restart.rendezvous_at
    if restart.broke_at:
        yield "broken", restart.broke_at


def timeline(attempts: Sequence[Attempt], *, submitted_at: datetime, now: datetime) -> Timeline | None:
    """The drawing, or None while there is no attempt. ``attempts`` come with their restarts prefetched."""
    if not attempts:
        return None
    end = max(a.ended_at or now for a in attempts)
    span_s = max((end - submitted_at).total_seconds(), 1.0)
    used: set[str] = set()
    rows = []
    before = submitted_at
    for attempt in attempts:
        phases = [Phase("waiting", before, attempt.created_at)] if attempt.created_at > before else []
        restarts = sorted(attempt.restarts.all(), key=lambda r: r.number)
        phases += attempt_phases(attempt, restarts, now)
        used |= {p.name for p in phases}
        marks = [
            Tick(_percent(r.broke_at, submitted_at, span_s), str(r.number)) for r in restarts if r.broke_at is not None
        ]
        rows.append(Row(attempt, [_segment(p, submitted_at, span_s) for p in phases], marks))
        before = attempt.ended_at or now
    return Timeline(rows, _ticks(span_s), [(name, words) for name, words in PHASES.items() if name in used])


def _percent(at: datetime, origin: datetime, span_s: float) -> float:
    return max(0.0, min(100.0, 100 * (at - origin).total_seconds() / span_s))


def _segment(phase: Phase, origin: datetime, span_s: float) -> Segment:
    x = _percent(phase.begin, origin, span_s)
    width = _percent(phase.end, origin, span_s) - x
    length = duration((phase.end - phase.begin) / timedelta(seconds=1))
    return Segment(x, width, phase.name, str(PHASES[phase.name]), length)


def _ticks(span_s: float) -> list[Tick]:
    step = tick_step_s(span_s, most=6)
    return [
        Tick(100 * s / span_s, duration(s) if s >= 10 or not s else f"{s} {_t('s')}")
        for s in range(0, int(span_s) + 1, step)
    ]
