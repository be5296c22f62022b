"""What flows do to an attempt: claim it, say that they live, launch agents, settle the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from portal.errors import NotFound, PortalError
from portal.events.services import event_record
from portal.jobs.attempt_tokens import AgentIdentity, agent_token
from portal.jobs.gang import gang_break, gang_restart
from portal.jobs.lifecycle import (
    ATTEMPT_FINAL,
    AttemptAction,
    AttemptState,
    JobAction,
    JobState,
)
from portal.jobs.models import Attempt, AttemptNode, Checkpoint, Job
from portal.jobs.services import attempt_move, attempt_release, job_move


class StaleEpoch(PortalError):
    """A flow of an older epoch: another one has taken over."""

    code = "stale-epoch"
    status = 409
    title = "Another flow has taken over"


class AttemptOver(PortalError):
    """The attempt has ended."""

    code = "attempt-over"
    status = 410
    title = "The attempt has ended"


@dataclass(frozen=True)
class AgentView:
    """What the engine sees of one node's agent."""

    node: str
    generation: int
    alive: bool
    exit_code: int | None = None


def attempt_lock(attempt_id: str) -> Attempt:
    """The attempt's row, locked until the transaction ends: its reports are handled one after the other."""
    attempt = Attempt.objects.select_for_update(of=("self",)).select_related("job").filter(pk=attempt_id).first()
    if attempt is None:
        raise NotFound(f"There is no attempt {attempt_id}.")
    return attempt


def _of_epoch(attempt_id: str, epoch: int) -> Attempt:
    attempt = attempt_lock(attempt_id)
    if epoch != attempt.epoch:
        raise StaleEpoch(f"Epoch {epoch} of {attempt_id} is over; epoch {attempt.epoch} is live. Leave.")
    if attempt.state in ATTEMPT_FINAL:
        raise AttemptOver(f"Attempt {attempt_id} has ended: {attempt.state}.")
    return attempt


@transaction.atomic
def attempt_claim(*, attempt_id: str, epoch: int, flow_run_id: str, holder: str, now: datetime) -> dict[str, Any]:
    """The launch plan, for the one flow that claims this epoch first."""
    attempt = _of_epoch(attempt_id, epoch)
    if attempt.flow_holder and attempt.flow_holder != holder:
        raise StaleEpoch(f"Epoch {epoch} of {attempt_id} was claimed by {attempt.flow_holder}. Leave.")
    attempt.flow_holder, attempt.flow_seen_at = holder, now
    attempt.flow_run_id = flow_run_id
    attempt.flow_claimed_at = attempt.flow_claimed_at or now
    attempt.save(update_fields=["flow_holder", "flow_seen_at", "flow_run_id", "flow_claimed_at"])
    if attempt.state == AttemptState.ALLOCATING:
        attempt_move(attempt=attempt, action=AttemptAction.CLAIM, now=now)
    return _plan(attempt)


def _plan(attempt: Attempt) -> dict[str, Any]:
    job = Job.objects.select_related("team", "user").get(pk=attempt.job_id)
    indices: dict[str, list[int]] = {}
    for node, index in attempt.allocations.filter(until__isnull=True).values_list("node_id", "gpu_index"):
        indices.setdefault(node, []).append(index)
    job_dir = settings.JOBS_DIR / job.pk
    return {
        "attempt": attempt.pk,
        "job": job.pk,
        "epoch": attempt.epoch,
        "name": job.name,
        "team": job.team.name,
        "user": job.user.username,
        "engine": settings.ENVIRONMENT.engine,
        "job_dir": str(job_dir),
        "run_dir": str(job_dir / "attempts" / attempt.pk),
        "nodes": [
            {
                "name": part.node_id,
                "node_rank": part.node_rank,
                "address": part.node.address,
                "gpu_indices": sorted(indices.get(part.node_id, [])),
                "generation": part.generation,
            }
            for part in attempt.nodes.select_related("node")
        ],
        "ranks_per_node": job.gpus_per_node,
        "workload": job.spec["workload"],
        "environment": job.spec["environment"],
        "resume": job.resume,
        "grace_s": attempt.grace_s,
        "heartbeat_s": settings.ENVIRONMENT.heartbeat_s,
    }


@transaction.atomic
def attempt_heartbeat(
    *,
    attempt_id: str,
    epoch: int,
    agents: Sequence[AgentView],
    problem: dict[str, Any] | None,
    now: datetime,
) -> dict[str, Any]:
    """What the flow should do now: watch (and launch these agents), or settle."""
    attempt = _of_epoch(attempt_id, epoch)
    attempt.flow_seen_at = now
    Attempt.objects.filter(pk=attempt.pk).update(flow_seen_at=now)
    if problem is not None and attempt.state != AttemptState.STOPPING:
        gang_break(
            attempt=attempt,
            cause={
                "class": "platform",
                "code": str(problem.get("code", "engine_problem"))[:60],
                "action": "retry_exclude_node" if problem.get("node") else "retry_same",
                "root_node": problem.get("node"),
                "evidence": [str(problem.get("message", ""))[:500]],
            },
            nodes_alive=False,
            now=now,
        )
    seen = {view.node: view for view in agents}
    parts = list(attempt.nodes.all())
    dead = [p for p in parts if not _is_alive(p, seen.get(p.node_id))]
    if attempt.state == AttemptState.SAVING and dead:
        # Its ranks died with it: there is nothing left to save.
        attempt_move(attempt=attempt, action=AttemptAction.STOP, now=now, reason="agent gone while saving")
    lost = [p for p in dead if p.generation > 0]
    if lost and attempt.state in (AttemptState.RENDEZVOUS, AttemptState.RUNNING):
        gang_restart_after_agent_loss(attempt, lost, now)
    if attempt.state == AttemptState.STOPPING:
        return {"action": "settle", "launch": [], "stop_agents": True, "heartbeat_s": 0.2}
    quick = attempt.state != AttemptState.RUNNING
    return {
        "action": "watch",
        "launch": [p.node_id for p in dead],
        "stop_agents": False,
        "heartbeat_s": 0.5 if quick else settings.ENVIRONMENT.heartbeat_s,
    }


def _is_alive(part: AttemptNode, view: AgentView | None) -> bool:
    return part.generation > 0 and view is not None and view.alive and view.generation == part.generation


def gang_restart_after_agent_loss(attempt: Attempt, lost: Sequence[AttemptNode], now: datetime) -> None:
    """The ranks of a dead agent are dead too: the same nodes start the next restart."""
    gang_restart(
        attempt=attempt,
        cause={
            "class": "platform",
            "code": "agent_died",
            "action": "retry_same",
            "root_node": lost[0].node_id,
            "evidence": [f"agent of node {lost[0].node_id} is gone (generation {lost[0].generation})"],
        },
        now=now,
    )


@transaction.atomic
def agent_launch(*, attempt_id: str, epoch: int, node: str, now: datetime) -> dict[str, Any]:
    """The next generation's number and token for one node. Older agents of the node are fenced from here on."""
    attempt = _of_epoch(attempt_id, epoch)
    part = attempt.nodes.filter(node_id=node).first()
    if part is None:
        raise NotFound(f"Node {node} is not part of attempt {attempt_id}.")
    part.generation += 1
    part.launched_at = now
    part.seen_at = None
    part.agent_state, part.agent_restart, part.ready_restart = "", -1, -1
    part.save()
    event_record(subject=attempt, verb="agent_launch", after={"node": node, "generation": part.generation}, at=now)
    identity = AgentIdentity(attempt.pk, node, part.generation)
    return {
        "generation": part.generation,
        "token": agent_token(identity),
        "portal_url": settings.ENVIRONMENT.portal_url,
    }


@transaction.atomic
def attempt_settle(*, attempt_id: str, epoch: int, gone: bool, checkpoint: dict[str, Any] | None, now: datetime) -> str:
    """The attempt's final state: terminal, GPUs and quota given back, and the job moved on, all at once."""
    attempt = _of_epoch(attempt_id, epoch)
    if not gone:
        raise PortalError("An attempt is settled only when none of its processes is left.")
    if attempt.state != AttemptState.STOPPING:
        raise PortalError(f"Attempt {attempt_id} is {attempt.state}: nothing to settle yet.")
    if checkpoint and checkpoint.get("path"):
        state = {"verified": Checkpoint.State.VERIFIED, "corrupt": Checkpoint.State.CORRUPT}.get(
            str(checkpoint.get("state"))
        )
        if state is not None:
            Checkpoint.objects.filter(job_id=attempt.job_id, path=checkpoint["path"]).update(state=state)
    outcome = AttemptState(attempt.outcome)
    attempt_move(
        attempt=attempt,
        action=AttemptAction(f"end_{outcome.value}"),
        now=now,
        reason=str((attempt.cause or {}).get("code", "")),
    )
    attempt_release(attempt=attempt, now=now)
    _job_after(attempt, outcome, now)
    return outcome.value


def _job_after(attempt: Attempt, outcome: AttemptState, now: datetime) -> None:
    """Move the job as its attempt's end demands."""
    job = Job.objects.select_for_update().get(pk=attempt.job_id)
    cause = attempt.cause or {}
    retry = bool(cause.get("retry"))
    if outcome == AttemptState.SUCCEEDED:
        job_move(job=job, action=JobAction.SUCCEED, now=now)
        cause = {"class": "success", "code": "finished", "action": "none"}
    elif job.state == JobState.CANCELLING:
        job_move(job=job, action=JobAction.FINISH_CANCEL, now=now)
    elif outcome == AttemptState.PREEMPTED or retry:
        job_move(job=job, action=JobAction.INTERRUPT, now=now, reason=str(cause.get("code", "")))
        return
    else:
        job_move(job=job, action=JobAction.FAIL, now=now, reason=str(cause.get("code", "")))
    Job.objects.filter(pk=job.pk).update(end_cause=cause)
