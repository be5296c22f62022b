"""A gang that broke: why, and what follows. The portal decides; agents carry it out."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from flows.failures import Case, RankExit, classify
from portal.events.services import event_record
from portal.jobs.lifecycle import AttemptAction, AttemptState
from portal.jobs.models import Attempt, Checkpoint, Job, Rank, Restart
from portal.jobs.policy import EVIDENCE_WAIT_S, Gang, Next, RankEnd, Verdict, after_failure, gang_state
from portal.jobs.services import attempt_move, attempt_stop


def gang_judge(*, attempt: Attempt, now: datetime) -> None:
    """Look at the ranks of the current restart and decide, when there is something to decide."""
    if attempt.state not in (AttemptState.RENDEZVOUS, AttemptState.RUNNING, AttemptState.SAVING):
        return
    ranks = list(Rank.objects.filter(attempt=attempt, restart=attempt.restart).select_related("node"))
    world_size = attempt.job.num_nodes * attempt.job.gpus_per_node
    state = gang_state([_end_of(r) for r in ranks], world_size)
    if state == Gang.FINISHED:
        attempt_outcome_success(attempt, now)
    elif attempt.state == AttemptState.SAVING:
        if len(ranks) == world_size and all(r.state == "exited" for r in ranks):
            attempt_move(attempt=attempt, action=AttemptAction.STOP, now=now, reason="all ranks left")
    elif state in (Gang.BROKEN, Gang.STOPPED):
        _judge_broken(attempt, ranks, world_size, now)


def attempt_outcome_success(attempt: Attempt, now: datetime) -> None:
    """Every rank did all its work: a success, even if somebody wished to stop it meanwhile."""
    attempt.outcome, attempt.cause = AttemptState.SUCCEEDED, {"class": "success", "code": "finished"}
    Attempt.objects.filter(pk=attempt.pk).update(outcome=attempt.outcome, cause=attempt.cause)
    attempt_move(attempt=attempt, action=AttemptAction.STOP, now=now, reason="finished")


def _end_of(rank: Rank) -> RankEnd:
    return RankEnd(
        rank=rank.rank,
        exited=rank.state == "exited",
        exit_code=rank.exit_code,
        record_status=(rank.exit_record or {}).get("status"),
    )


def _judge_broken(attempt: Attempt, ranks: Sequence[Rank], world_size: int, now: datetime) -> None:
    restart = Restart.objects.get(attempt=attempt, number=attempt.restart)
    if restart.seen_at is None:
        ends = [r.ended_at for r in ranks if r.ended_at and not _end_of(r).finished]
        restart.broke_at, restart.seen_at = min(ends, default=now), now
        restart.save(update_fields=["broke_at", "seen_at"])
    complete = len(ranks) == world_size and all(r.state == "exited" for r in ranks)
    if not complete and now - restart.seen_at < timedelta(seconds=EVIDENCE_WAIT_S):
        return
    gang_break(attempt=attempt, cause=cause_of(attempt, ranks), nodes_alive=True, now=now)


def cause_of(attempt: Attempt, ranks: Sequence[Rank]) -> dict[str, Any]:
    """Why the gang ended, from its ranks' exit records, exit codes and last lines."""
    case = Case(
        engine="local",
        num_nodes=attempt.job.num_nodes,
        ranks_per_node=attempt.job.gpus_per_node,
        node_names=tuple(p.node_id for p in attempt.nodes.all()),
        ranks=tuple(
            RankExit(
                rank=r.rank,
                node=r.node_id,
                exit_code=r.exit_code,
                t_s=(r.ended_at - attempt.created_at).total_seconds() if r.ended_at else None,
                record=r.exit_record,
                log_tail=r.stderr_tail,
            )
            for r in ranks
            if r.state == "exited"
        ),
    )
    return classify(case).as_json()


@transaction.atomic
def gang_break(*, attempt: Attempt, cause: dict[str, Any], nodes_alive: bool, now: datetime) -> None:
    """Carry out what the policy says about this cause: restart in place, retry elsewhere or fail."""
    following = _next(attempt, cause, nodes_alive, now)
    if following.verdict == Verdict.RESTART:
        gang_restart(attempt=attempt, cause={**cause, "why": following.why}, now=now)
        return
    retry = following.verdict == Verdict.RETRY
    if following.exclude:
        job = Job.objects.select_for_update().get(pk=attempt.job_id)
        job.excluded_nodes = sorted({*job.excluded_nodes, *following.exclude})
        job.save(update_fields=["excluded_nodes"])
    _restart_ended(attempt, cause, now)
    attempt_stop(
        attempt=attempt,
        outcome=AttemptState.LOST if not nodes_alive else AttemptState.FAILED,
        cause={**cause, "retry": retry, "why": following.why},
        now=now,
        save=False,
    )


def _next(attempt: Attempt, cause: dict[str, Any], nodes_alive: bool, now: datetime) -> Next:
    job = Job.objects.select_for_update().get(pk=attempt.job_id)
    restart = Restart.objects.get(attempt=attempt, number=attempt.restart)
    durable = Checkpoint.objects.filter(
        job=job,
        written_at__gt=restart.began_at,
        state__in=(Checkpoint.State.DURABLE, Checkpoint.State.VERIFIED),
    ).exists()
    following = after_failure(
        cause=cause,
        failures_without_progress=job.failures_without_progress,
        made_progress=durable or job.max_step > job.progress_step,
        max_retries=int(job.spec.get("max_retries", 3)),
        nodes_alive=nodes_alive,
    )
    Job.objects.filter(pk=job.pk).update(
        failures_without_progress=following.failures_without_progress, progress_step=job.max_step
    )
    return following


def _restart_ended(attempt: Attempt, cause: dict[str, Any], now: datetime) -> None:
    row = Restart.objects.get(attempt=attempt, number=attempt.restart)
    row.broke_at, row.seen_at = row.broke_at or now, row.seen_at or now
    row.ended_at, row.cause = now, cause
    row.save()


@transaction.atomic
def gang_restart(*, attempt: Attempt, cause: dict[str, Any], now: datetime) -> None:
    """Begin the next restart on the same nodes: agents kill what is left, get ready, and start again."""
    _restart_ended(attempt, cause, now)
    attempt.restart += 1
    attempt.master_addr, attempt.master_port = "", None
    attempt.save(update_fields=["restart", "master_addr", "master_port"])
    max_step = Job.objects.values_list("max_step", flat=True).get(pk=attempt.job_id)
    Restart.objects.create(attempt=attempt, number=attempt.restart, began_at=now, max_step_before=max_step)
    attempt_move(attempt=attempt, action=AttemptAction.RESTART, now=now, reason=str(cause.get("code", "")))
    event_record(
        subject=attempt, verb="restart_in_place", after=attempt.restart, reason=str(cause.get("code", "")), at=now
    )
