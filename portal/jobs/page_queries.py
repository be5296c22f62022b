"""What the pages read beyond ``queries``: filtered lists, counts, and the little facts beside a job."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self

from django.db.models import Count, F, Max, Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.http import QueryDict

from portal.accounts.models import User
from portal.errors import BadRequest
from portal.jobs.lifecycle import JOB_FINAL, JobState
from portal.jobs.models import Allocation, Attempt, Checkpoint, Job, Rank
from portal.jobs.queries import jobs_visible_to
from portal.jobs.telemetry import LogFile, MetricChunk
from portal.web.live import digest
from trainer.config import TrainerConfig

PAGE_SIZE: Final = 50
LIVE_STATES: Final = frozenset(JobState) - JOB_FINAL


@dataclass(frozen=True)
class JobFilter:
    """The filters in the address of the jobs page."""

    states: tuple[str, ...] = ()
    team: str = ""
    mine: bool = False
    text: str = ""
    label: str = ""
    before: str = ""

    @classmethod
    def read(cls, query: QueryDict) -> Self:
        """The filters of a query; a state that does not exist is refused."""
        states = tuple(s for s in query.get("state", "").split(",") if s)
        unknown = [s for s in states if s not in JobState.values]
        if unknown:
            raise BadRequest(f"Unknown state {unknown[0]!r}. Known: {', '.join(JobState.values)}.")
        return cls(
            states=states,
            team=query.get("team", "")[:60],
            mine=query.get("user") == "me",
            text=query.get("q", "").strip().replace("\0", "")[:100],
            label=query.get("label", "").replace("\0", "")[:161],
            before=query.get("before", "")[:40],
        )

    def apart_from_state(self, user: User) -> QuerySet[Job]:
        """The jobs that all filters but the state let through."""
        rows = jobs_visible_to(user)
        if self.team:
            rows = rows.filter(team__name=self.team)
        if self.mine:
            rows = rows.filter(user=user)
        if self.text:
            rows = rows.filter(
                Q(name__icontains=self.text) | Q(pk__startswith=self.text) | Q(user__username__iexact=self.text)
            )
        if self.label:
            name, _, value = self.label.partition("=")
            # The name is an operand here. Put into a look-up's name, it could be a path or an operator.
            rows = rows.annotate(wanted=Cast(KeyTextTransform(name, "labels"), TextField())).filter(wanted=value)
        return rows

    def jobs(self, user: User) -> tuple[list[Job], str]:
        """One page of jobs, newest first, and the id from which the next page goes on ("" at the end)."""
        rows = self.apart_from_state(user)
        if self.states:
            rows = rows.filter(state__in=self.states)
        if self.before:
            rows = rows.filter(pk__lt=self.before)
        found: list[Job] = [*rows.order_by("-pk").annotate(num_attempts=Count("attempts"))[: PAGE_SIZE + 1]]
        more = found[PAGE_SIZE - 1].pk if len(found) > PAGE_SIZE else ""
        return found[:PAGE_SIZE], more


def state_counts(rows: QuerySet[Job]) -> dict[str, int]:
    """How many jobs are in each state."""
    found = rows.order_by().values_list("state").annotate(count=Count("pk"))
    counts = dict.fromkeys(JobState.values, 0)
    return counts | dict(found)


def list_fingerprint(jobs: Iterable[Job], counts: dict[str, int]) -> str:
    """What the table shows, in short."""
    rows = [
        (j.pk, j.state, j.max_step, (j.pending_reason or {}).get("code"), getattr(j, "num_attempts", 0)) for j in jobs
    ]
    return digest([rows, counts])


def steps_wanted(job: Job) -> int | None:
    """The steps that the job will do, when it says so."""
    workload = job.spec["workload"]
    if workload["kind"] != "trainer":
        return None
    steps = workload.get("config", {}).get("steps", TrainerConfig.steps)
    return int(steps)


def job_fingerprint(job: Job) -> str:
    """Changes whenever something that the job page shows has changed; a few indexed look-ups."""
    attempts = Attempt.objects.filter(job=job)
    last = attempts.order_by("-number").values_list("pk", "state", "restart", "max_step").first()
    checkpoints = Checkpoint.objects.filter(job=job).values_list("state", "step", "pinned").order_by("pk")
    ranks = Rank.objects.filter(attempt__job=job).values_list("state").annotate(count=Count("pk")).order_by("state")
    starts = attempts.aggregate(
        count=Count("restarts"),
        met=Count("restarts__rendezvous_at"),
        ranks=Count("restarts__first_rank_at"),
        stepped=Count("restarts__first_step_at"),
        broke=Max("restarts__broke_at"),
    )
    reason = (job.pending_reason or {}).get("checked_at")
    return digest([job.state, job.max_step, reason, last, list(checkpoints), list(ranks), starts, job.ended_at])


@dataclass(frozen=True)
class LogChoice:
    """A log that can be read: of which attempt, restart, rank and stream."""

    attempt: int
    restart: int
    rank: int
    stream: str


def log_choices(job: Job) -> list[LogChoice]:
    """Every log file of the job, newest attempt first."""
    rows = LogFile.objects.filter(attempt__job=job).order_by("-attempt__number", "-restart", "rank", "-stream")
    return [LogChoice(*row) for row in rows.values_list("attempt__number", "restart", "rank", "stream")]


def has_metrics(job: Job) -> bool:
    """Whether any number was reported."""
    return MetricChunk.objects.filter(job=job).exists()


def held_now(job: Job) -> list[tuple[str, list[int]]]:
    """Node → GPU indices that the job holds now."""
    found: dict[str, list[int]] = {}
    rows = Allocation.objects.filter(attempt__job=job, until__isnull=True).order_by("node_id", "gpu_index")
    for node, index in rows.values_list("node_id", "gpu_index"):
        found.setdefault(node, []).append(index)
    return list(found.items())


def ahead_of(job: Job) -> tuple[int, int]:
    """Jobs and GPUs that wait in the same queue before this job."""
    before = Job.objects.filter(queue=job.queue_id, state__in=(JobState.QUEUED, JobState.RECOVERING)).filter(
        Q(priority__gt=job.priority)
        | Q(priority=job.priority, submitted_at__lt=job.submitted_at)
        | Q(priority=job.priority, submitted_at=job.submitted_at, pk__lt=job.pk)
    )
    sizes = list(before.values_list("num_nodes", "gpus_per_node"))
    return len(sizes), sum(nodes * gpus for nodes, gpus in sizes)


@dataclass(frozen=True)
class Holder:
    """A live job that holds GPUs of the type that another one waits for. ``job`` is None when it may not be seen."""

    job: Job | None
    team: str
    num_gpus: int
    since: datetime
    until: datetime | None


def holders_before(job: Job, user: User) -> list[Holder]:
    """Who holds what the job needs: GPUs of its type, in its own queue only where its queue's quota is the reason.

    Those that end first by their time limit come first; at most six.
    """
    rows = Attempt.objects.filter(job__gpu_type=job.gpu_type, allocations__until__isnull=True)
    if (job.pending_reason or {}).get("code") == "team_quota":
        rows = rows.filter(job__queue=job.queue_id)
    rows = rows.select_related("job__team", "job__user").annotate(count=Count("allocations"))
    seen = set(jobs_visible_to(user).filter(state__in=sorted(LIVE_STATES)).values_list("pk", flat=True))
    found = []
    for attempt in rows:
        limit = attempt.job.time_limit_s
        until = attempt.created_at + timedelta(seconds=limit) if limit else None
        shown = attempt.job if attempt.job_id in seen else None
        found.append(Holder(shown, attempt.job.team.name, attempt.count, attempt.created_at, until))
    found.sort(key=lambda h: (h.until is None, h.until or h.since, h.since))
    return found[:6]


def recent_jobs(user: User, states: Iterable[str], *, since: datetime | None = None) -> list[Job]:
    """The user's own jobs in these states, the latest change first, at most ten."""
    rows = jobs_visible_to(user).filter(user=user, state__in=list(states))
    if since is not None:
        rows = rows.filter(state_since__gte=since)
    return list(rows.order_by("-state_since")[:10])


def gpu_holders(user: User) -> dict[tuple[str, int], dict[str, Any]]:
    """(node, GPU) → who holds it now. A job that the user may not see is named by its team only."""
    visible = set(jobs_visible_to(user).filter(state__in=sorted(LIVE_STATES)).values_list("pk", flat=True))
    rows = Allocation.objects.filter(until__isnull=True).values(
        "node_id",
        "gpu_index",
        "since",
        job_id=F("attempt__job_id"),
        job_name=F("attempt__job__name"),
        team=F("attempt__job__team__name"),
    )
    return {(row["node_id"], row["gpu_index"]): {**row, "visible": row["job_id"] in visible} for row in rows}


def failed_since(now: datetime) -> datetime:
    """From when on the home page tells of failed jobs."""
    return now - timedelta(days=1)
