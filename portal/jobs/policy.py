"""What the end of a gang means: restart in place, try elsewhere, or end the job. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

# After the first rank has failed, its peers raise within about 100 ms, and their exit records say which
# of them was the first. Waiting longer would only serve a peer that hangs, and that one is killed anyway.
EVIDENCE_WAIT_S = 1.5


class Verdict(StrEnum):
    """What to do with the job now."""

    RESTART = "restart"  # same attempt, same nodes, next restart number
    RETRY = "retry"  # another attempt, placed anew
    FAIL = "fail"


@dataclass(frozen=True)
class Next:
    """The verdict, its reason, and the nodes that the next attempt must avoid."""

    verdict: Verdict
    why: str
    failures_without_progress: int
    exclude: tuple[str, ...] = ()
    quarantine: str | None = None


def after_failure(
    *,
    cause: dict[str, Any],
    failures_without_progress: int,
    made_progress: bool,
    max_retries: int,
    nodes_alive: bool,
) -> Next:
    """What follows a failed gang.

    ``cause`` has the class and action of ``flows.failures``. Progress (a new step or durable checkpoint
    since the failure before) resets the count, so a long run survives any number of unrelated faults,
    while the same fault at the same step ends the job after ``max_retries``.
    """
    action = cause["action"]
    node = cause.get("root_node")
    failures = 1 if made_progress else failures_without_progress + 1
    if action in ("fail_user", "fail_config"):
        return Next(Verdict.FAIL, "The same run would fail again.", failures)
    if action in ("requeue", "resume_elsewhere"):
        exclude = (node,) if node and action == "resume_elsewhere" else ()
        return Next(Verdict.RETRY, "Not the job's fault: no retry is used up.", failures_without_progress, exclude)
    limit = min(max_retries, 1) if action == "stop_unknown_then_retry_once" else max_retries
    if failures > limit:
        return Next(Verdict.FAIL, f"It failed {failures} times without a new step or checkpoint in between.", failures)
    if action == "quarantine_node" and node:
        return Next(Verdict.RETRY, f"Node {node} is suspect.", failures, (node,), node)
    if action == "retry_exclude_node" and node:
        return Next(Verdict.RETRY, f"Without node {node}.", failures, (node,))
    if nodes_alive:
        return Next(Verdict.RESTART, "Ranks died and the nodes are fine.", failures)
    return Next(Verdict.RETRY, "A node of the gang is gone.", failures, (node,) if node else ())


@dataclass(frozen=True)
class RankEnd:
    """How one rank of the gang stands."""

    rank: int
    exited: bool
    exit_code: int | None = None
    record_status: str | None = None

    @property
    def finished(self) -> bool:
        """It did all its work. Its exit record outranks the exit code: teardown may abort afterwards."""
        return self.exited and (
            self.record_status == "finished" or (self.record_status is None and self.exit_code == 0)
        )

    @property
    def stopped(self) -> bool:
        """It saved and left because it was asked to."""
        return self.exited and (self.record_status == "stopped" or self.exit_code == 90)


class Gang(StrEnum):
    """What the ranks together show."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    BROKEN = "broken"


def gang_state(ranks: Sequence[RankEnd], world_size: int) -> Gang:
    """Running while none has failed; finished or stopped once all have; broken as soon as one fails."""
    if any(r.exited and not r.finished and not r.stopped for r in ranks):
        return Gang.BROKEN
    if len(ranks) < world_size or not all(r.exited for r in ranks):
        return Gang.RUNNING
    return Gang.FINISHED if all(r.finished for r in ranks) else Gang.STOPPED
