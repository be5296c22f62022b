"""What the scheduler answers: one plan, applied as a whole."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import overload

Detail = Mapping[str, object]


class Reason(StrEnum):
    """Why a job waits. The codes never change; numbers are in the detail."""

    HELD_BY_ADMIN = "held_by_admin"
    HELD_BY_USER = "held_by_user"
    DEPENDENCY = "dependency"
    BACKOFF = "backoff"
    ARRAY_LIMIT = "array_limit"
    DEADLINE = "deadline"
    CONFIGURATION = "configuration"
    GPU_TYPE = "gpu_type"
    EXCEEDS_MAX_QUOTA = "exceeds_max_quota"
    WAITING_FOR_PREEMPTION = "waiting_for_preemption"
    BUDGET = "budget"
    TEAM_QUOTA = "team_quota"
    COHORT_QUOTA = "cohort_quota"
    LICENCES = "licences"
    DISRUPTION_BUDGET = "disruption_budget"
    INSUFFICIENT_GPUS = "insufficient_gpus"
    FRAGMENTED = "fragmented"
    TOPOLOGY = "topology"
    MAINTENANCE = "maintenance"
    RESERVATION = "reservation"
    PRIORITY = "priority"


class Refusal(StrEnum):
    """Why a job can never run as it was asked for."""

    BAD_SIZE = "bad_size"
    BAD_SLICES = "bad_slices"
    UNKNOWN_QUEUE = "unknown_queue"
    UNKNOWN_LEVEL = "unknown_level"
    DUPLICATE_ID = "duplicate_id"


@dataclass(frozen=True, slots=True)
class Start:
    """Start the job now. `placement` is {node: GPUs}, empty where only counts are known."""

    job: str
    placement: Mapping[str, int]
    gpu_type: str
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """Tell a running job to save and stop; its GPUs are kept for the preemptor, which is held."""

    job: str
    preemptor: str
    # Unsaved GPU-seconds since its last checkpoint (or its start).
    lost_gpu_s: float = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """The job's GPUs are on their way out of others' hands: keep `placement` for it."""

    job: str
    placement: Mapping[str, int]
    gpu_type: str


@dataclass(frozen=True, slots=True)
class Planned:
    """The job starts at this time at the latest, if jobs run to their limits."""

    job: str
    start_s: float


@dataclass(frozen=True, slots=True)
class Pending:
    """The job waits, and why."""

    job: str
    reason: Reason
    detail: Detail


@dataclass(frozen=True, slots=True)
class Rejected:
    """The job can never run as it is: refuse it."""

    job: str
    code: Refusal
    message: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Stop a running job for its own sake: a broken gang, a lost node, a lowered quota."""

    job: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Move a job's lost workers; `placement` is the whole new one."""

    job: str
    placement: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Shrink:
    """Take surplus GPUs from an elastic job: at its next checkpoint it goes on with `num_gpus`."""

    job: str
    num_gpus: int
    placement: Mapping[str, int]
    preemptor: str


@dataclass(frozen=True, slots=True)
class Grow:
    """Give an elastic job more GPUs at its next checkpoint."""

    job: str
    num_gpus: int
    placement: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Move:
    """Checkpoint the job and start it again on `placement`, so that another one fits."""

    job: str
    placement: Mapping[str, int]
    preemptor: str


class PendingList(Sequence[Pending]):
    """One entry for each waiting job, kept as groups of jobs that share reason and detail.

    Tens of thousands of jobs wait for a handful of reasons: entries are made when they are read.
    """

    __slots__ = ("_groups", "_length")

    def __init__(self, groups: Iterable[tuple[Sequence[str], Reason, Detail]] = ()) -> None:
        self._groups = tuple(groups)
        self._length = sum(len(jobs) for jobs, _, _ in self._groups)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Pending]:
        for jobs, reason, detail in self._groups:
            for job in jobs:
                yield Pending(job, reason, detail)

    @overload
    def __getitem__(self, index: int) -> Pending: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pending]: ...
    def __getitem__(self, index: int | slice) -> Pending | Sequence[Pending]:
        if isinstance(index, slice):
            return list(self)[index]
        position = index + self._length if index < 0 else index
        if position < 0:
            raise IndexError(index)
        for jobs, reason, detail in self._groups:
            if position < len(jobs):
                return Pending(jobs[position], reason, detail)
            position -= len(jobs)
        raise IndexError(index)

    def groups(self) -> Sequence[tuple[Sequence[str], Reason, Detail]]:
        """Jobs that share a reason and its numbers, together."""
        return self._groups

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PendingList):
            return NotImplemented
        return list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self._length)

    def __repr__(self) -> str:
        return f"PendingList({list(self)!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions of one pass, each list in order of decision."""

    start: tuple[Start, ...] = ()
    preempt: tuple[Preempt, ...] = ()
    hold: tuple[Hold, ...] = ()
    planned: tuple[Planned, ...] = ()
    pending: PendingList = field(default_factory=PendingList)
    rejected: tuple[Rejected, ...] = ()
    evict: tuple[Evict, ...] = ()
    replace: tuple[Replace, ...] = ()
    shrink: tuple[Shrink, ...] = ()
    grow: tuple[Grow, ...] = ()
    move: tuple[Move, ...] = ()
    # What is wrong with the quotas or nodes themselves, one sentence each.
    problems: tuple[str, ...] = ()
    # Shares times 1000 by queue and cohort; None is infinite (weight zero and borrowing).
    shares: Mapping[str, Fraction | None] = field(default_factory=dict)
    fair_shares: Mapping[str, int] = field(default_factory=dict)
    undivided: int | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
