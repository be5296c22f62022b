"""All that people and the scheduler do to jobs. What flows and agents report is in ``attempts`` and ``reports``."""

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F

from portal.accounts.models import Team, User
from portal.accounts.policy import require
from portal.cluster.models import Node
from portal.errors import FieldError, InvalidSpec, InvalidTransition, NotFound, PortalError
from portal.events.services import event_record
from portal.jobs.lifecycle import (
    ATTEMPT_FINAL,
    JOB_FINAL,
    AttemptAction,
    AttemptState,
    JobAction,
    JobState,
    next_attempt_state,
    next_job_state,
)
from portal.jobs.models import Allocation, Attempt, Checkpoint, IdempotencyRecord, Job
from portal.jobs.spec import CommandWorkload, JobSpec, spec_parse
from portal.quotas.models import Queue, Quota
from portal.quotas.queries import queue_potential
from portal.wake import wake_scheduler


class JobMoved(InvalidTransition):
    """Somebody else moved it between our reading and our writing."""

    code = "moved"


class QuotaExceeded(PortalError):
    """The job could never start under its queue's limits."""

    code = "quota-exceeded"
    title = "The job can never fit its quota"


class KeyReused(PortalError):
    """The same idempotency key with another body."""

    code = "idempotency-key-reused"
    title = "This key was used for another request"


@transaction.atomic
def job_move(*, job: Job, action: JobAction, now: datetime, actor: str = "portal", reason: str = "") -> JobState:
    """The job's new state, after the one step that the table allows for this action."""
    old = JobState(job.state)
    new = next_job_state(old, action)
    values: dict[str, Any] = {"state": new, "state_since": now}
    if new in JOB_FINAL:
        values |= {"ended_at": now, "pending_reason": None}
    if new == JobState.RUNNING and job.started_at is None:
        values["started_at"] = now
    if new == JobState.STARTING:
        values["pending_reason"] = None
    # The update names the state that we read: of two processes that race, one gets JobMoved.
    if Job.objects.filter(pk=job.pk, state=old).update(**values) != 1:
        raise JobMoved(f"Job {job.pk} was changed by somebody else at this moment. Look at it again.")
    event_record(subject=job, verb=action.value, before=old.value, after=new.value, actor=actor, reason=reason, at=now)
    for name, value in values.items():
        setattr(job, name, value)
    return new


@transaction.atomic
def attempt_move(*, attempt: Attempt, action: AttemptAction, now: datetime, reason: str = "") -> AttemptState:
    """The attempt's new state, after the one step that the table allows for this action."""
    old = AttemptState(attempt.state)
    new = next_attempt_state(old, action)
    values: dict[str, Any] = {"state": new, "state_since": now}
    if new in ATTEMPT_FINAL:
        values["ended_at"] = now
    if new == AttemptState.RUNNING and attempt.running_at is None:
        values["running_at"] = now
    if Attempt.objects.filter(pk=attempt.pk, state=old).update(**values) != 1:
        raise JobMoved(f"Attempt {attempt.pk} was changed by somebody else at this moment.")
    event_record(
        subject=attempt,
        verb=action.value,
        before=old.value,
        after=new.value,
        reason=reason,
        at=now,
        team_id=attempt.job.team_id,
    )
    for name, value in values.items():
        setattr(attempt, name, value)
    return new


@transaction.atomic
def job_submit(
    *, user: User, data: Any, now: datetime, route: str = "jobs", key: str = "", source: str = "rest"
) -> tuple[Job, bool]:
    """The new job, and whether this is the replay of an earlier submission with the same key."""
    digest = hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()
    if key:
        earlier = IdempotencyRecord.objects.filter(user=user, route=route, key=key).first()
        if earlier is not None:
            return _replay(earlier, digest), True
    spec, normal, queue, resume = job_check(user=user, data=data)
    job = Job(
        name=spec.name,
        team=queue.team,
        queue=queue,
        user=user,
        spec=normal,
        labels=spec.labels,
        state=JobState.HELD if spec.hold else JobState.QUEUED,
        hold="user" if spec.hold else "",
        state_since=now,
        submitted_at=now,
        gpu_type=spec.gpu_type,
        num_nodes=spec.nodes,
        gpus_per_node=spec.gpus_per_node,
        priority=spec.priority,
        time_limit_s=spec.time_limit_s,
        resume=resume,
    )
    if key:
        try:
            with transaction.atomic():
                IdempotencyRecord.objects.create(
                    user=user,
                    route=route,
                    key=key,
                    body_digest=digest,
                    answer={"id": job.pk},
                    created_at=now,
                )
        except IntegrityError:
            # The same key came twice at once; the other one is committed by now.
            return _replay(IdempotencyRecord.objects.get(user=user, route=route, key=key), digest), True
    job.save(force_insert=True)
    event_record(subject=job, verb="submit", after=job.state, actor=user.username, reason=source, at=now)
    wake_scheduler()
    return job, False


def job_check(*, user: User, data: Any) -> tuple[JobSpec, dict[str, Any], Queue, str]:
    """What a submission would become: spec, its normal form, queue, resume. Refused as ``job_submit`` refuses."""
    spec, normal = spec_parse(data)
    queue = _queue_of(user, spec)
    _check_fits(spec, queue)
    return spec, normal, queue, _resume_of(spec, queue.team)


def _replay(record: IdempotencyRecord, digest: str) -> Job:
    if record.body_digest != digest:
        raise KeyReused("This Idempotency-Key belongs to a request with another body. Use a new key.")
    return Job.objects.get(pk=record.answer["id"])


def _queue_of(user: User, spec: JobSpec) -> Queue:
    team = Team.objects.filter(name=spec.team).first()
    if team is None:
        detail = f"There is no team {spec.team!r}."
        raise InvalidSpec(detail, errors=[FieldError("/team", "unknown-team", detail)])
    require(user, "job.submit", team)
    queues = list(Queue.objects.select_related("team").filter(team=team))
    if spec.queue is not None:
        queues = [q for q in queues if q.name == spec.queue]
    if len(queues) == 1:
        return queues[0]
    names = ", ".join(sorted(Queue.objects.filter(team=team).values_list("name", flat=True))) or "none yet"
    detail = f"Name one of the queues of team {team.name}: {names}."
    raise InvalidSpec(detail, errors=[FieldError("/queue", "unknown-queue", detail)])


def _check_fits(spec: JobSpec, queue: Queue) -> None:
    """Refuse what could never start: unknown type, more than the cluster has, more than the quota allows."""
    sizes = list(Node.objects.filter(gpu_type=spec.gpu_type).values_list("num_gpus", flat=True))
    if not sizes:
        known = sorted(set(Node.objects.values_list("gpu_type", flat=True)))
        detail = f"There is no GPU type {spec.gpu_type!r} here. Known: {', '.join(known) or 'none yet'}."
        raise InvalidSpec(detail, errors=[FieldError("/gpu_type", "unknown-gpu-type", detail)])
    fitting = sum(1 for size in sizes if size >= spec.gpus_per_node)
    if fitting < spec.nodes:
        detail = (
            f"The job asks for {spec.nodes} nodes with {spec.gpus_per_node} GPUs each, and the cluster has "
            f"{fitting} such nodes of type {spec.gpu_type}. Ask for fewer nodes or fewer GPUs per node."
        )
        raise InvalidSpec(detail, errors=[FieldError("/nodes", "more-than-the-cluster", detail)])
    asked = spec.nodes * spec.gpus_per_node
    potential = queue_potential(queue, spec.gpu_type)
    if potential is None:
        detail = f"Queue {queue.name} has no quota for {spec.gpu_type}. Ask an administrator for one."
        raise QuotaExceeded(detail, errors=[FieldError("/gpu_type", "no-quota", detail)])
    if asked > potential:
        detail = (
            f"The job asks for {asked} GPUs of type {spec.gpu_type}, and queue {queue.name} can use at most "
            f"{potential}, borrowing included. Ask for fewer, or for more quota."
        )
        raise QuotaExceeded(detail, errors=[FieldError("/nodes", "quota-exceeded", detail)])
    if isinstance(spec.workload, CommandWorkload):
        _check_entry_point(spec.workload)


def _check_entry_point(workload: CommandWorkload) -> None:
    """The script must be there now: nodes of the local engine see the same files as the portal."""
    folder = Path(workload.working_dir)
    if not folder.is_dir():
        detail = f"The working directory {workload.working_dir} does not exist on the nodes."
        raise InvalidSpec(detail, errors=[FieldError("/workload/working_dir", "not-found", detail)])
    program = workload.argv[0]
    scripts = [a for a in workload.argv[1:] if a.endswith(".py") and not a.startswith("-")][:1]
    for index, name in ((0, program), *((workload.argv.index(s), s) for s in scripts)):
        is_path = "/" in name or name.endswith(".py")
        if is_path and not (folder / name).is_file():
            detail = f"The entry point {name} does not exist in {workload.working_dir}."
            raise InvalidSpec(detail, errors=[FieldError(f"/workload/argv/{index}", "not-found", detail)])


def _resume_of(spec: JobSpec, team: Team) -> str:
    """``auto``, ``none``, or the path of the checkpoint that the spec names by its id."""
    if spec.resume in ("auto", "none"):
        return spec.resume
    found = Checkpoint.objects.filter(pk=spec.resume, job__team=team).first()
    if found is None:
        detail = f"There is no checkpoint {spec.resume!r} of team {team.name}. Use an id from the checkpoints page."
        raise InvalidSpec(detail, errors=[FieldError("/resume", "unknown-checkpoint", detail)])
    if found.state not in (Checkpoint.State.DURABLE, Checkpoint.State.VERIFIED):
        detail = f"Checkpoint {found.pk} is {found.state} and cannot be resumed from. Choose an older one."
        raise InvalidSpec(detail, errors=[FieldError("/resume", "checkpoint-unusable", detail)])
    return found.path


def _require_own_or_any(user: User, job: Job) -> None:
    require(user, "job.act_own" if job.user_id == user.pk else "job.act_any", job.team)


@transaction.atomic
def job_cancel(*, job: Job, user: User, now: datetime, reason: str = "") -> Job:
    """The job, cancelled at once or (when it holds GPUs) being cancelled. Asking again changes nothing."""
    _require_own_or_any(user, job)
    job = Job.objects.select_for_update().get(pk=job.pk)
    if job.state in (JobState.CANCELLING, JobState.CANCELLED):
        return job
    cause = {"class": "cancelled", "code": "cancelled_by_user", "action": "none", "evidence": [user.username]}
    new = job_move(job=job, action=JobAction.CANCEL, now=now, actor=user.username, reason=reason)
    if new == JobState.CANCELLED:
        Job.objects.filter(pk=job.pk).update(end_cause=cause)
        return job
    attempt = live_attempt(job)
    if attempt is not None:
        attempt_stop(attempt=attempt, outcome=AttemptState.CANCELLED, cause=cause, now=now, save=True)
    return job


@transaction.atomic
def job_hold(*, job: Job, user: User, now: datetime) -> Job:
    """The job, kept from starting until it is released."""
    _require_own_or_any(user, job)
    job_move(job=job, action=JobAction.HOLD, now=now, actor=user.username)
    Job.objects.filter(pk=job.pk).update(hold="user")
    return job


@transaction.atomic
def job_release(*, job: Job, user: User, now: datetime) -> Job:
    """The job, waiting for GPUs again."""
    _require_own_or_any(user, job)
    job_move(job=job, action=JobAction.RELEASE, now=now, actor=user.username)
    Job.objects.filter(pk=job.pk).update(hold="")
    wake_scheduler()
    return job


def job_resume(*, job: Job, user: User, checkpoint_id: str, now: datetime) -> Job:
    """A new job with the same spec that starts from the chosen checkpoint of this one."""
    require(user, "job.submit", job.team)
    found = Checkpoint.objects.filter(pk=checkpoint_id, job=job).first()
    if found is None:
        raise NotFound(f"Job {job.pk} has no checkpoint {checkpoint_id!r}.")
    data = {**job.spec, "resume": checkpoint_id, "hold": False}
    return job_submit(user=user, data=data, now=now, source=f"resume of {job.pk}")[0]


def live_attempt(job: Job) -> Attempt | None:
    """The job's attempt that has not ended, locked for writing; None when there is none."""
    return (
        Attempt.objects.select_for_update(of=("self",))
        .select_related("job")
        .filter(job=job)
        .exclude(state__in=sorted(ATTEMPT_FINAL))
        .first()
    )


@transaction.atomic
def attempt_stop(*, attempt: Attempt, outcome: AttemptState, cause: dict[str, Any], now: datetime, save: bool) -> None:
    """Decide how a live attempt ends. The first decision stays; its processes are stopped next."""
    if attempt.outcome or attempt.state in ATTEMPT_FINAL:
        return
    attempt.outcome, attempt.cause, attempt.stop_requested_at = outcome, cause, now
    Attempt.objects.filter(pk=attempt.pk, outcome="").update(outcome=outcome, cause=cause, stop_requested_at=now)
    action = AttemptAction.STOP
    if save and attempt.state == AttemptState.RUNNING:
        action = AttemptAction.SAVE
    attempt_move(attempt=attempt, action=action, now=now, reason=str(cause.get("code", "")))


@transaction.atomic
def attempt_release(*, attempt: Attempt, now: datetime) -> int:
    """The number of GPUs that were given back, with their quota. Giving back twice changes nothing."""
    count = Allocation.objects.filter(attempt=attempt, until__isnull=True).update(until=now)
    if count:
        Quota.objects.filter(queue_id=attempt.job.queue_id, gpu_type=attempt.job.gpu_type).update(
            used=F("used") - count
        )
        wake_scheduler()
    return count
