"""The quota tree as pages show it."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from portal.quotas.models import Cohort, Queue, Quota
from portal.web.svg import Segment, Share, stacked


@dataclass(frozen=True)
class QuotaBar:
    """One limit with its use, drawn on the scale of the largest limit beside it."""

    quota: Quota
    name: str
    team: str
    borrowed: int
    free: int
    bar: list[Segment]
    nominal_percent: float


def quota_bar(quota: Quota, *, whole: int | None = None) -> QuotaBar:
    """Used within the own quota, borrowed beyond it, free of it."""
    borrowed = max(0, quota.used - quota.nominal)
    own = quota.used - borrowed
    scale = max(whole or 0, quota.nominal, quota.used, 1)
    shares = [Share("used", "used", own), Share("borrowed", "borrowed", borrowed)]
    team = quota.queue.team.name if quota.queue else ""
    free = max(0, quota.nominal - quota.used)
    return QuotaBar(quota, quota.owner_name, team, borrowed, free, stacked(shares, scale), 100 * quota.nominal / scale)


def team_bars(team_names: Iterable[str]) -> list[QuotaBar]:
    """The bars of the queues of these teams."""
    rows = Quota.objects.filter(queue__team__name__in=list(team_names)).select_related("queue__team", "cohort")
    return [quota_bar(row) for row in rows.order_by("queue__name", "gpu_type")]


@dataclass
class Branch:
    """A cohort with what hangs on it; the root branch holds queues without a cohort."""

    cohort: Cohort | None
    limits: list[Quota] = field(default_factory=list)
    queues: list[tuple[Queue, list[QuotaBar]]] = field(default_factory=list)
    children: list["Branch"] = field(default_factory=list)


def quota_tree() -> list[Branch]:
    """Top-level cohorts with everything below them, then the queues that stand alone."""
    limits: dict[str, list[Quota]] = defaultdict(list)
    bars: dict[str, list[QuotaBar]] = defaultdict(list)
    largest: dict[str, int] = defaultdict(int)
    rows = list(Quota.objects.select_related("queue__team", "cohort").order_by("gpu_type"))
    for row in rows:
        largest[row.gpu_type] = max(largest[row.gpu_type], row.nominal if row.queue_id else 0, row.used)
    for row in rows:
        if row.cohort_id:
            limits[row.cohort_id].append(row)
        else:
            bars[str(row.queue_id)].append(quota_bar(row, whole=largest[row.gpu_type]))
    branches = {c.pk: Branch(c, limits[c.pk]) for c in Cohort.objects.all()}
    alone = Branch(None)
    for queue in Queue.objects.select_related("team"):
        home = branches[queue.cohort_id] if queue.cohort_id else alone
        home.queues.append((queue, bars[queue.pk]))
    roots: list[Branch] = []
    for branch in branches.values():
        assert branch.cohort is not None
        parent = branches.get(branch.cohort.parent_id or "")
        (parent.children if parent else roots).append(branch)
    return roots + ([alone] if alone.queues else [])
