"""The life of a job and of an attempt: two tables, and what may happen next."""

from typing import Final

from django.db import models

from portal.errors import InvalidTransition


class JobState(models.TextChoices):
    """Where a job stands. ``recovering`` is between two attempts."""

    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobAction(models.TextChoices):
    """What can happen to a job."""

    HOLD = "hold"
    RELEASE = "release"
    ADMIT = "admit"
    RUN = "run"
    INTERRUPT = "interrupt"
    CANCEL = "cancel"
    SUCCEED = "succeed"
    FAIL = "fail"
    FINISH_CANCEL = "finish_cancel"


S, A = JobState, JobAction
JOB_TRANSITIONS: Final[dict[tuple[JobState, JobAction], JobState]] = {
    (S.QUEUED, A.HOLD): S.HELD,
    (S.RECOVERING, A.HOLD): S.HELD,
    (S.HELD, A.RELEASE): S.QUEUED,
    (S.QUEUED, A.ADMIT): S.STARTING,
    (S.RECOVERING, A.ADMIT): S.STARTING,
    (S.STARTING, A.RUN): S.RUNNING,
    (S.STARTING, A.INTERRUPT): S.RECOVERING,
    (S.RUNNING, A.INTERRUPT): S.RECOVERING,
    # Nothing runs yet: cancelled at once.
    (S.HELD, A.CANCEL): S.CANCELLED,
    (S.QUEUED, A.CANCEL): S.CANCELLED,
    (S.RECOVERING, A.CANCEL): S.CANCELLED,
    # An attempt holds GPUs: it is stopped first.
    (S.STARTING, A.CANCEL): S.CANCELLING,
    (S.RUNNING, A.CANCEL): S.CANCELLING,
    (S.CANCELLING, A.FINISH_CANCEL): S.CANCELLED,
    # It finished while the wish to cancel was on its way.
    (S.CANCELLING, A.SUCCEED): S.SUCCEEDED,
    (S.CANCELLING, A.FAIL): S.FAILED,
    (S.STARTING, A.SUCCEED): S.SUCCEEDED,
    (S.RUNNING, A.SUCCEED): S.SUCCEEDED,
    (S.STARTING, A.FAIL): S.FAILED,
    (S.RUNNING, A.FAIL): S.FAILED,
    (S.RECOVERING, A.FAIL): S.FAILED,
}
JOB_FINAL: Final = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
JOB_PENDING: Final = frozenset({S.QUEUED, S.RECOVERING})


class AttemptState(models.TextChoices):
    """Where one try at running a job stands."""

    ALLOCATING = "allocating"
    LAUNCHING = "launching"
    RENDEZVOUS = "rendezvous"
    RUNNING = "running"
    SAVING = "saving"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    LOST = "lost"


class AttemptAction(models.TextChoices):
    """What can happen to an attempt."""

    CLAIM = "claim"
    GATHER = "gather"
    RUN = "run"
    RESTART = "restart"
    SAVE = "save"
    STOP = "stop"
    END_SUCCEEDED = "end_succeeded"
    END_FAILED = "end_failed"
    END_PREEMPTED = "end_preempted"
    END_CANCELLED = "end_cancelled"
    END_LOST = "end_lost"


T, B = AttemptState, AttemptAction
ATTEMPT_TRANSITIONS: Final[dict[tuple[AttemptState, AttemptAction], AttemptState]] = {
    (T.ALLOCATING, B.CLAIM): T.LAUNCHING,
    (T.LAUNCHING, B.GATHER): T.RENDEZVOUS,
    (T.RENDEZVOUS, B.RUN): T.RUNNING,
    # In-place restart: same nodes, next restart number.
    (T.LAUNCHING, B.RESTART): T.RENDEZVOUS,
    (T.RENDEZVOUS, B.RESTART): T.RENDEZVOUS,
    (T.RUNNING, B.RESTART): T.RENDEZVOUS,
    # Asked to save and leave: saves first, within its grace.
    (T.RUNNING, B.SAVE): T.SAVING,
    (T.ALLOCATING, B.STOP): T.STOPPING,
    (T.LAUNCHING, B.STOP): T.STOPPING,
    (T.RENDEZVOUS, B.STOP): T.STOPPING,
    (T.RUNNING, B.STOP): T.STOPPING,
    (T.SAVING, B.STOP): T.STOPPING,
    (T.STOPPING, B.END_SUCCEEDED): T.SUCCEEDED,
    (T.STOPPING, B.END_FAILED): T.FAILED,
    (T.STOPPING, B.END_PREEMPTED): T.PREEMPTED,
    (T.STOPPING, B.END_CANCELLED): T.CANCELLED,
    (T.STOPPING, B.END_LOST): T.LOST,
}
ATTEMPT_FINAL: Final = frozenset({T.SUCCEEDED, T.FAILED, T.PREEMPTED, T.CANCELLED, T.LOST})
ATTEMPT_LIVE: Final = frozenset(T) - ATTEMPT_FINAL


def next_job_state(state: JobState, action: JobAction) -> JobState:
    """The state after the action; refused with the acts that are possible."""
    new = JOB_TRANSITIONS.get((state, action))
    if new is None:
        possible = sorted(a.value for s, a in JOB_TRANSITIONS if s == state and a in JOB_USER_ACTIONS)
        what_now = f"Possible now: {', '.join(possible)}." if possible else "It has ended for good."
        raise InvalidTransition(f"A job that is {state.value} cannot {action.value}. {what_now}")
    return new


def next_attempt_state(state: AttemptState, action: AttemptAction) -> AttemptState:
    """The state after the action; refused when the table has no such step."""
    new = ATTEMPT_TRANSITIONS.get((state, action))
    if new is None:
        raise InvalidTransition(f"An attempt that is {state.value} cannot {action.value}.")
    return new


JOB_USER_ACTIONS: Final = frozenset({A.HOLD, A.RELEASE, A.CANCEL})
