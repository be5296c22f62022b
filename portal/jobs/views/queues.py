"""The queue page: who waits, in which order, for what."""

from collections import defaultdict
from dataclasses import dataclass, field

from django.http import HttpResponse
from django.shortcuts import render

from portal.accounts.models import User
from portal.accounts.policy import require
from portal.jobs.lifecycle import JobState
from portal.jobs.models import Job
from portal.jobs.queries import jobs_visible_to, pending_order, teams_visible_to
from portal.quotas.models import Queue, Quota
from portal.quotas.page_queries import QuotaBar, quota_bar
from portal.web.access import PageRequest, page
from portal.web.live import digest, unchanged

WAITING = (JobState.QUEUED, JobState.RECOVERING, JobState.HELD)
MOST_SHOWN = 200


@dataclass
class QueueView:
    """A queue's limits and its waiting jobs in order. Of a queue that the user may not see, only the counts."""

    queue: Queue
    visible: bool
    bars: list[QuotaBar] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    num_waiting: int = 0
    gpus_waiting: int = 0


@page()
def queue_page(request: PageRequest) -> HttpResponse:
    """The page, or its part that renews itself."""
    require(request.user, "queue.read")
    views = _queues(request.user)
    fingerprint = digest(
        [
            [v.queue.name, v.num_waiting, [(b.quota.used, b.quota.nominal) for b in v.bars]]
            + [(j.pk, j.state, (j.pending_reason or {}).get("checked_at")) for j in v.jobs]
            for v in views
        ]
    )
    if request.htmx:
        same = unchanged(request, fingerprint)
        if same is not None:
            return same
    template = "jobs/queue_part.html" if request.htmx else "jobs/queue.html"
    response = render(request, template, {"queues": views})
    response["ETag"] = f'"{fingerprint}"'
    return response


def _queues(user: User) -> list[QueueView]:
    seen = set(teams_visible_to(user).values_list("pk", flat=True))
    views = {q.pk: QueueView(q, q.team_id in seen) for q in Queue.objects.select_related("team")}
    for quota in Quota.objects.filter(queue__isnull=False).select_related("queue__team").order_by("gpu_type"):
        views[str(quota.queue_id)].bars.append(quota_bar(quota))
    for queue_id, nodes, gpus in Job.objects.filter(state__in=WAITING).values_list(
        "queue", "num_nodes", "gpus_per_node"
    ):
        views[queue_id].num_waiting += 1
        views[queue_id].gpus_waiting += nodes * gpus
    by_queue: dict[str, list[Job]] = defaultdict(list)
    for job in jobs_visible_to(user).filter(state__in=WAITING):
        by_queue[job.queue_id].append(job)
    for queue_id, jobs in by_queue.items():
        held = [j for j in jobs if j.state == JobState.HELD]
        order = pending_order([j for j in jobs if j.state != JobState.HELD])
        views[queue_id].jobs = (order + held)[:MOST_SHOWN]
    return sorted(views.values(), key=lambda v: (not v.visible, -v.num_waiting, v.queue.name))
