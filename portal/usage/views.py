"""Usage: where held GPU time went, by team, user and job; the same sums as REST and CSV."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final, Self

from django.db.models import QuerySet
from django.http import HttpResponse, QueryDict
from django.shortcuts import render
from django.utils import timezone

from portal.accounts.models import User
from portal.accounts.policy import require
from portal.errors import BadRequest
from portal.jobs.models import Job
from portal.jobs.queries import job_find, jobs_visible_to
from portal.usage.api import read_day, usage_csv
from portal.usage.models import Cause, UsageEntry
from portal.usage.report import UsageRow, entries_visible_to, usage_by
from portal.usage.words import CAUSES, EXPLANATIONS
from portal.web.access import PageRequest, page
from portal.web.formats import tenths
from portal.web.live import digest, unchanged
from portal.web.svg import Segment, Share, stacked

PERIODS: Final = (1, 7, 30, 90)
DEFAULT_DAYS: Final = 30


@dataclass(frozen=True)
class UsageFilter:
    """The filters in the address. A team opens its users, a user opens his jobs."""

    days: int | None
    since: date | None
    until: date | None
    team: str
    user: str
    by: str

    @classmethod
    def read(cls, query: QueryDict, today: date) -> Self:
        """The filters of a query."""
        text = query.get("days", "")
        since, until = read_day(query.get("from"), "from"), read_day(query.get("to"), "to")
        days: int | None = None
        if since is None and until is None:
            days = DEFAULT_DAYS
            if text:
                if not text.isdecimal() or not 1 <= int(text[:6]) <= 3660:
                    raise BadRequest("days must be a whole number from 1 to 3660.")
                days = int(text[:6])
            since = today - timedelta(days=days - 1)
        if since and until and since > until:
            raise BadRequest("The first day is after the last one. Exchange them.")
        team, user = query.get("team", "")[:60], query.get("user", "")[:150]
        by = query.get("by", "")
        if by not in ("", "team", "user", "job", "gpu_type", "day"):
            raise BadRequest("by must be one of team, user, job, gpu_type, day.")
        return cls(days, since, until, team, user, by or ("job" if user else "user" if team else "team"))

    def entries(self, user: User) -> QuerySet[UsageEntry]:
        """Ledger entries of the days, teams and users that the filters let through."""
        rows = entries_visible_to(user, self.since, self.until)
        if self.team:
            rows = rows.filter(team__name=self.team)
        if self.user:
            rows = rows.filter(user__username=self.user)
        return rows


@dataclass(frozen=True)
class Line:
    """One row as the page shows it: shares with one decimal that sum to 100.0, and a bar."""

    row: UsageRow
    label: str
    shares: dict[str, float]
    bar: list[Segment]

    @property
    def goodput(self) -> float:
        """The share of training in percent: the figure of its column, rounded as the others are."""
        return self.shares[Cause.PRODUCTIVE]

    @property
    def sum_of_shares(self) -> float:
        """100.0, or 0 when nothing was held."""
        return round(sum(self.shares.values()), 1)


def line_of(row: UsageRow, label: str, longest: float | None = None) -> Line:
    """The row with its shares and bar; ``longest`` makes bars of several rows comparable."""
    shares = tenths(row.causes)
    parts = [Share(c, str(CAUSES[c]), row.causes[c], f"{shares[c]:.1f} %") for c in CAUSES]
    return Line(row, label, shares, stacked(parts, longest))


@page()
def usage_page(request: PageRequest) -> HttpResponse:
    """The whole page."""
    wanted = UsageFilter.read(request.GET, timezone.now().date())
    entries = wanted.entries(request.user)
    rows = usage_by(entries, wanted.by)
    names = _job_names(request.user, rows) if wanted.by == "job" else {}
    whole = _sum(rows)
    query = request.GET.copy()
    query["by"] = wanted.by
    return render(
        request,
        "usage/usage.html",
        {
            "filter": wanted,
            "lines": [line_of(row, names.get(row.key, row.key)) for row in rows],
            "whole": line_of(whole, "") if rows else None,
            "lost_s": whole.gpu_s - whole.causes[Cause.PRODUCTIVE],
            "causes": [(c, CAUSES[c], EXPLANATIONS[c]) for c in CAUSES if whole.causes[c] > 0],
            "periods": PERIODS,
            "csv_query": query.urlencode(),
        },
    )


@page()
def usage_csv_page(request: PageRequest) -> HttpResponse:
    """The same rows as a CSV file."""
    wanted = UsageFilter.read(request.GET, timezone.now().date())
    return usage_csv(usage_by(wanted.entries(request.user), wanted.by), wanted.by)


@page()
def job_ledger(request: PageRequest, job_id: str) -> HttpResponse:
    """The ledger of one job: a part of its page."""
    job: Job = job_find(request.user, job_id)
    require(request.user, "usage.read", job.team)
    rows = usage_by(entries_visible_to(request.user).filter(job=job), "job")
    fingerprint = digest(rows[0].as_json() if rows else "")
    same = unchanged(request, fingerprint)
    if same is not None:
        return same
    context = {"line": line_of(rows[0], job.name) if rows else None, "causes": _table(rows[0]) if rows else []}
    response = render(request, "usage/job_ledger.html", context)
    response["ETag"] = f'"{fingerprint}"'
    return response


def _table(row: UsageRow) -> list[tuple[str, Any, float, float]]:
    """Cause, its word, GPU-seconds and share, largest first."""
    shares = tenths(row.causes)
    found = [(c.value, CAUSES[c], row.causes[c], shares[c]) for c in Cause if row.causes[c] > 0]
    return sorted(found, key=lambda item: -item[2])


def _sum(rows: list[UsageRow]) -> UsageRow:
    causes = {c.value: sum(row.causes[c] for row in rows) for c in Cause}
    return UsageRow("", sum(row.gpu_s for row in rows), causes, sum(row.num_jobs for row in rows))


def _job_names(user: User, rows: list[UsageRow]) -> dict[str, str]:
    return dict(jobs_visible_to(user).filter(pk__in=[row.key for row in rows]).values_list("pk", "name"))
