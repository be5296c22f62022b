"""GPU time per team, user, type, job or day, by cause: what screens, REST and CSV show alike."""

from dataclasses import dataclass
from datetime import date
from typing import Any

from django.db.models import Count, Max, Min, Q, QuerySet, Sum
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs.models import Allocation
from portal.jobs.queries import teams_visible_to
from portal.times import to_ns
from portal.usage.models import Cause, UsageEntry

GROUPS = {
    "team": "team__name",
    "user": "user__username",
    "gpu_type": "gpu_type",
    "job": "job_id",
    "day": "day",
    "attempt": "attempt_id",
}


@dataclass(frozen=True)
class UsageRow:
    """One group's GPU seconds: in all, and by cause; the causes sum to the whole."""

    key: str
    gpu_s: float
    causes: dict[str, float]
    num_jobs: int

    @property
    def goodput(self) -> float:
        """The productive share of the held time, 0 to 1."""
        return self.causes.get("productive", 0.0) / self.gpu_s if self.gpu_s else 0.0

    def shares(self) -> dict[str, float]:
        """Per cause, its share of the held time in percent."""
        return {c: 100.0 * v / self.gpu_s if self.gpu_s else 0.0 for c, v in self.causes.items()}

    def as_json(self) -> dict[str, Any]:
        """The form that REST shows."""
        return {
            "key": self.key,
            "gpu_s": round(self.gpu_s, 6),
            "gpu_hours": f"{self.gpu_s / 3600:.4f}",
            "causes": {c: round(v, 6) for c, v in self.causes.items()},
            "shares_percent": {c: round(v, 4) for c, v in self.shares().items()},
            "goodput": round(self.goodput, 4),
            "jobs": self.num_jobs,
        }


def entries_visible_to(user: User, since: date | None = None, until: date | None = None) -> QuerySet[UsageEntry]:
    """Ledger entries of the teams that the user may see, of the days from ``since`` to ``until``."""
    rows = UsageEntry.objects.filter(team__in=teams_visible_to(user))
    if since:
        rows = rows.filter(day__gte=since)
    if until:
        rows = rows.filter(day__lte=until)
    return rows


def usage_by(rows: QuerySet[UsageEntry], group: str) -> list[UsageRow]:
    """One row per group, the largest first."""
    field = GROUPS[group]
    sums = {c.value: Sum("gpu_ns", filter=Q(cause=c.value), default=0) for c in Cause}
    found = rows.order_by().values(field).annotate(num_jobs=Count("job", distinct=True), **sums)
    shown = []
    for row in found:
        causes = {c.value: row[c.value] / 1e9 for c in Cause}
        whole = sum(row[c.value] for c in Cause) / 1e9
        shown.append(UsageRow(str(row[field]), whole, causes, row["num_jobs"]))
    return sorted(shown, key=lambda r: (-r.gpu_s, r.key))


def held_gpu_ns(attempt_ids: list[str]) -> int:
    """What the attempts held, straight from their allocations: the figure that the ledger must equal."""
    now = timezone.now()
    rows = Allocation.objects.filter(attempt__in=attempt_ids).values_list("since", "until")
    return sum(to_ns(until or now) - to_ns(since) for since, until in rows)


def days_covered(rows: QuerySet[UsageEntry]) -> tuple[date | None, date | None]:
    """The first and last day that the entries speak of."""
    found = rows.aggregate(first=Min("day"), last=Max("day"))
    return found["first"], found["last"]
