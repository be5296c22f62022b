"""All reads of jobs: what a user may see, and the forms in which it is shown."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from portal.accounts.models import Team, User
from portal.errors import NotFound
from portal.jobs.lifecycle import ATTEMPT_FINAL, JobState
from portal.jobs.models import Attempt, Checkpoint, Job, Restart
from portal.jobs.telemetry import MetricChunk


def teams_visible_to(user: User) -> QuerySet[Team]:
    """Teams whose jobs the user may see."""
    return Team.objects.all() if user.is_superuser else Team.objects.filter(memberships__user=user)


def jobs_visible_to(user: User) -> QuerySet[Job]:
    """Jobs that the user may see: of his teams, or all for an administrator."""
    rows = Job.objects.select_related("team", "user", "queue")
    return rows if user.is_superuser else rows.filter(team__memberships__user=user)


def job_find(user: User, job_id: str) -> Job:
    """The job, or ``NotFound``: whether it is absent or hidden is not told."""
    job = jobs_visible_to(user).filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id!r} that you may see.")
    return job


def attempt_find(user: User, attempt_id: str) -> Attempt:
    """The attempt, or ``NotFound``."""
    attempt = Attempt.objects.select_related("job__team").filter(pk=attempt_id).first()
    if attempt is None or not jobs_visible_to(user).filter(pk=attempt.job_id).exists():
        raise NotFound(f"There is no attempt {attempt_id!r} that you may see.")
    return attempt


def time_text(at: datetime | None) -> str | None:
    """RFC 3339 in UTC."""
    return at.isoformat().replace("+00:00", "Z") if at else None


def job_json(job: Job) -> dict[str, Any]:
    """A job as lists show it."""
    return {
        "id": job.pk,
        "name": job.name,
        "team": job.team.name,
        "queue": job.queue.name,
        "user": job.user.username,
        "state": job.state,
        "state_since": time_text(job.state_since),
        "gpu_type": job.gpu_type,
        "nodes": job.num_nodes,
        "gpus_per_node": job.gpus_per_node,
        "priority": job.priority,
        "time_limit_s": job.time_limit_s,
        "labels": job.labels,
        "submitted_at": time_text(job.submitted_at),
        "started_at": time_text(job.started_at),
        "ended_at": time_text(job.ended_at),
        "last_step": job.max_step,
        "pending_reason": job.pending_reason if job.state in (JobState.QUEUED, JobState.RECOVERING) else None,
        "end_cause": job.end_cause,
    }


def job_detail_json(job: Job) -> dict[str, Any]:
    """A job with its attempts."""
    attempts = job.attempts.prefetch_related("restarts", "nodes").order_by("number")
    return {**job_json(job), "spec": job.spec, "attempts": [attempt_json(a) for a in attempts]}


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """An attempt with its restarts and nodes."""
    return {
        "id": attempt.pk,
        "job": attempt.job_id,
        "number": attempt.number,
        "state": attempt.state,
        "created_at": time_text(attempt.created_at),
        "running_at": time_text(attempt.running_at),
        "ended_at": time_text(attempt.ended_at),
        "epoch": attempt.epoch,
        "restart": attempt.restart,
        "last_step": attempt.max_step,
        "last_step_at": time_text(attempt.last_step_at),
        "flow_run_id": attempt.flow_run_id,
        "nodes": [
            {
                "node": part.node_id,
                "node_rank": part.node_rank,
                "agent_generation": part.generation,
                "agent_state": part.agent_state,
                "agent_seen_at": time_text(part.seen_at),
            }
            for part in attempt.nodes.all()
        ],
        "restarts": [restart_json(r) for r in attempt.restarts.all()],
        "cause": attempt.cause,
        "facts": attempt.facts,
    }


def restart_json(row: Restart) -> dict[str, Any]:
    """One gang of ranks: when it began, met, stepped and broke."""
    return {
        "restart": row.number,
        "began_at": time_text(row.began_at),
        "rendezvous_at": time_text(row.rendezvous_at),
        "first_rank_at": time_text(row.first_rank_at),
        "first_step_at": time_text(row.first_step_at),
        "first_step": row.first_step,
        "resumed_step": row.resumed_step,
        "steps_recomputed": row.steps_recomputed,
        "rank_died_at": time_text(row.broke_at),
        "seen_at": time_text(row.seen_at),
        "ended_at": time_text(row.ended_at),
        "cause": row.cause,
    }


def job_timeline(job: Job) -> dict[str, Any]:
    """The instants between the submission and the first step of the job's first attempt, and its restarts."""
    attempts = list(job.attempts.prefetch_related("restarts", "nodes").order_by("number"))
    first = attempts[0] if attempts else None
    start = first.restarts.all()[0] if first and first.restarts.all() else None
    agents = [p.agent_started_at for p in first.nodes.all() if p.agent_started_at] if first else []
    return {
        "submitted_at": time_text(job.submitted_at),
        "decided_at": time_text(first.created_at) if first else None,
        "flow_started_at": time_text(first.flow_claimed_at) if first else None,
        "agent_started_at": time_text(max(agents, default=None)),
        "rendezvous_at": time_text(start.rendezvous_at) if start else None,
        "first_rank_at": time_text(start.first_rank_at) if start else None,
        "first_step_at": time_text(start.first_step_at) if start else None,
        "ended_at": time_text(job.ended_at),
        "restarts": [{"attempt": a.pk, **restart_json(r)} for a in attempts for r in a.restarts.all()],
    }


def checkpoint_json(row: Checkpoint) -> dict[str, Any]:
    """A checkpoint as lists show it."""
    return {
        "id": row.pk,
        "job": row.job_id,
        "attempt": row.attempt_id,
        "step": row.step,
        "state": row.state,
        "path": row.path,
        "bytes": row.num_bytes,
        "digest": row.digest,
        "world_size": row.world_size,
        "stall_s": row.stall_s,
        "duration_s": row.duration_s,
        "written_at": time_text(row.written_at),
        "pinned": row.pinned,
        "note": row.note,
    }


def rank_json(row: Any) -> dict[str, Any]:
    """A rank of the restart asked for."""
    return {
        "rank": row.rank,
        "restart": row.restart,
        "node": row.node_id,
        "local_rank": row.local_rank,
        "pid": row.pid,
        "state": row.state,
        "started_at": time_text(row.started_at),
        "ended_at": time_text(row.ended_at),
        "exit_code": row.exit_code,
        "signal": row.signal,
        "exit_record": row.exit_record,
    }


def metric_names(job: Job) -> list[str]:
    """Names of the job's series."""
    return sorted(MetricChunk.objects.filter(job=job).values_list("name", flat=True).distinct())


def metric_points(job: Job, name: str, *, points: int, after_step: int = -1) -> list[list[float | int]]:
    """``[step, t_ns, min, mean, max]`` in step order, at most ``points`` of them.

    A step that was done again after a restart counts with its last value. Buckets keep their least and
    greatest value, so a spike survives the thinning.
    """
    by_step: dict[int, tuple[int, float]] = {}
    chunks = MetricChunk.objects.filter(job=job, name=name, last_step__gt=after_step).order_by("id")
    for chunk in chunks.values_list("points", flat=True).iterator():
        for step, t_ns, value in chunk:
            if step > after_step and value is not None:
                by_step[step] = (t_ns, value)
    steps = sorted(by_step)
    if len(steps) <= points:
        return [[s, by_step[s][0], by_step[s][1], by_step[s][1], by_step[s][1]] for s in steps]
    thinned: list[list[float | int]] = []
    for bucket in range(points):
        part = steps[bucket * len(steps) // points : (bucket + 1) * len(steps) // points]
        values = [by_step[s][1] for s in part]
        thinned.append([part[-1], by_step[part[-1]][0], min(values), sum(values) / len(values), max(values)])
    return thinned


def live_attempts() -> QuerySet[Attempt]:
    """Attempts that hold GPUs."""
    return Attempt.objects.exclude(state__in=sorted(ATTEMPT_FINAL)).select_related("job__team")


def pending_order(jobs: Sequence[Job]) -> list[Job]:
    """Waiting jobs in the order in which a queue considers them: priority, then age, then id."""
    return sorted(jobs, key=lambda j: (-j.priority, j.submitted_at, j.pk))
