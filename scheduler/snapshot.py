"""What the scheduler sees: every fact that a decision may depend on, as frozen values.

A caller fills what it has; each default means "no such rule here". Times are seconds on one clock,
GPUs are whole, and a missing limit is *unlimited*, never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction


class Ordering(StrEnum):
    """Who is next."""

    PRIORITY = "priority"  # lower borrow height, higher priority, older
    FAIR_SHARE = "fair_share"  # a tournament of shares through the quota tree
    FAIR_TREE = "fair_tree"  # ranks of a share tree (users under accounts)
    CLASSIC_FAIRSHARE = "classic_fairshare"  # factor 2^(-usage/shares) of a share tree


class ShareStrategy(StrEnum):
    """When fair share lets a job evict another queue's job."""

    FINAL_SHARE = "final_share"
    INITIAL_SHARE = "initial_share"


class PlacementRule(StrEnum):
    """Which of the domains that could hold a job is taken."""

    BEST_FIT = "best_fit"
    LEAST_FREE = "least_free"
    BALANCED = "balanced"


class NodeFailure(StrEnum):
    """What happens to a running job that lost a node. LEAVE: somebody else decides."""

    LEAVE = "leave"
    REPLACE = "replace"
    FAIL_FAST = "fail_fast"


class QuotaLowered(StrEnum):
    """What a quota below present use means: leave what runs, let it drain, or stop the excess."""

    LEAVE = "leave"
    DRAIN = "drain"
    PREEMPT = "preempt"


class VictimOrder(StrEnum):
    """Among victims of equal priority: the newest, or the one that loses least unsaved GPU time."""

    NEWEST = "newest"
    LEAST_LOST = "least_lost"


class WithinQueue(StrEnum):
    """Whom a job may evict in its own queue."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"
    LOWER_OR_NEWER_EQUAL = "lower_or_newer_equal"


class Reclaim(StrEnum):
    """Whom a job may evict in queues that use more than their quota."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"
    ANY = "any"


class Borrow(StrEnum):
    """Whether a job that borrows may evict at all."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"


class NodeState(StrEnum):
    """Only READY nodes get new work; work on a DOWN node is lost, on the others it goes on."""

    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    QUARANTINED = "quarantined"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one pass. The defaults are the core rules; the lower half adds to them."""

    ordering: Ordering = Ordering.PRIORITY
    fair_sharing_strategies: tuple[ShareStrategy, ...] = (
        ShareStrategy.FINAL_SHARE,
        ShareStrategy.INITIAL_SHARE,
    )
    backfill: bool = False
    placement: PlacementRule = PlacementRule.BEST_FIT
    min_runtime_s: float = 0
    node_failure: NodeFailure = NodeFailure.LEAVE
    gang_broken_grace_s: float | None = None
    on_quota_lowered: QuotaLowered = QuotaLowered.LEAVE

    # Only the first jobs in line get a planned start and GPUs kept for it; None: all of them.
    plan_depth: int | None = None
    # "decayed_usage": inside a queue and priority, the subqueue that used least goes first.
    order_in_queue: str = ""
    # GPU-seconds charged to a subqueue for each GPU that starts, before its use is measured.
    entry_penalty_s: float = 0
    # "deserved_then_weight": quota is a deserved part, the rest is divided by weight.
    division: str = ""
    # A job gains one point of priority (order only, no right to evict) for each such time it waits.
    ageing_interval_s: float | None = None
    ageing_max: int = 10
    # Jobs whose latest start is nearer than this go first in their priority.
    deadline_horizon_s: float | None = None
    victim_order: VictimOrder = VictimOrder.NEWEST
    # A job that was preempted so often is no victim any more; so many victims an hour at most.
    max_preemptions_per_job: int | None = None
    max_preemptions_per_hour: int | None = None
    # Unsaved GPU-seconds that the victims of one pass may lose together.
    disruption_budget_gpu_s: float | None = None
    # A preemptor protected for this long may displace jobs that could evict it again later.
    stable_after_s: float = 1800
    # Take the surplus of elastic jobs before whole jobs; give free GPUs to jobs that can grow.
    elastic_shrink: bool = False
    elastic_grow: bool = False
    # Move running jobs together when that opens a node for a waiting one.
    consolidation: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """One queue's or cohort's limits on one GPU type, in GPUs; None is unlimited."""

    nominal: int
    borrow_limit: int | None = None
    lend_limit: int | None = None


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """Whom jobs of a queue may evict."""

    within_queue: WithinQueue = WithinQueue.NEVER
    reclaim_within_cohort: Reclaim = Reclaim.NEVER
    borrow_within_cohort: Borrow = Borrow.NEVER
    max_priority_threshold: int | None = None


@dataclass(frozen=True, slots=True)
class Fungibility:
    """Whether the search over a job's GPU types ends at one that needs borrowing, or eviction."""

    when_can_borrow: str = "stop"
    when_can_preempt: str = "next"
    preference: str = "borrow_first"


@dataclass(frozen=True, slots=True)
class Cell:
    """A guarantee of place, next to numbers: so many whole nodes inside one domain of a level."""

    gpu_type: str
    num_nodes: int
    level: str = "node"


@dataclass(frozen=True, slots=True)
class Budget:
    """GPU-seconds that a queue may still spend in its period; `reserved` is promised to running jobs."""

    left_gpu_s: float
    reserved_gpu_s: float = 0


@dataclass(frozen=True, slots=True)
class Cohort:
    """Queues and cohorts that lend idle quota to each other; `quota` is added at this level."""

    name: str
    parent: str | None = None
    weight: int | float | Fraction = 1
    quota: Mapping[str, Limit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """Where a team's jobs wait. A GPU type that `quota` does not list cannot be used."""

    name: str
    cohort: str | None = None
    weight: int | float | Fraction = 1
    quota: Mapping[str, Limit] = field(default_factory=dict)
    preemption: PreemptionPolicy = PreemptionPolicy()
    fungibility: Fungibility = Fungibility()
    min_runtime_s: float | None = None
    cells: tuple[Cell, ...] = ()
    budget: Budget | None = None
    # Optional schools: the order of a division's rounds, and what preemption leaves untouched.
    priority: int = 0
    created_s: float = 0
    guaranteed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subqueue:
    """A user's or project's part of a queue: its decayed use (GPU-seconds) and weight give its turn."""

    name: str
    queue: str
    decayed_usage: float | Fraction = 0
    weight: int | float | Fraction = 1


@dataclass(frozen=True, slots=True)
class Node:
    """A machine. `labels` names its domain at each topology level."""

    name: str
    gpu_type: str
    num_gpus: int
    labels: Mapping[str, str] = field(default_factory=dict)
    state: NodeState = NodeState.READY


@dataclass(frozen=True, slots=True)
class Slice:
    """Groups of `size` GPUs, each inside one domain of the level."""

    level: str
    size: int


@dataclass(frozen=True, slots=True)
class TopologyWish:
    """Where a job's workers must, or should, be together."""

    required: str | None = None
    preferred: str | None = None
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """A job that waits.

    Its size is `num_gpus` (workers of `chunk` GPUs, each on one node, that may share nodes) or
    `num_nodes` distinct nodes with `gpus_per_node` each.
    """

    id: str
    queue: str
    gpu_types: tuple[str, ...]
    num_gpus: int | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    chunk: int = 1
    priority: int = 0
    submitted_s: float = 0
    time_limit_s: float | None = None
    topology: TopologyWish | None = None
    excluded_nodes: frozenset[str] = frozenset()
    after: tuple[str, ...] = ()
    hold: str = ""  # "user" or "admin"
    not_before_s: float | None = None
    # Decided earlier: victims of this job were told to stop, and what they free is kept for it.
    held: bool = False
    preempted_count: int = 0
    subqueue: str | None = None
    user: str = ""
    licences: Mapping[str, int] = field(default_factory=dict)
    # Elastic: it may start with as little as this.
    num_gpus_min: int | None = None
    num_nodes_min: int | None = None
    deadline_s: float | None = None
    # Jobs of one array run at most `array_limit` at a time.
    array: str | None = None
    array_limit: int | None = None
    # Once started it may not be preempted for this long (the larger of this and the policies').
    protected_s: float = 0
    may_borrow: bool = True
    may_preempt: bool = True

    @property
    def size(self) -> int:
        """GPUs of the whole job."""
        if self.num_gpus is not None:
            return self.num_gpus
        return (self.num_nodes or 0) * (self.gpus_per_node or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds GPUs. `placement` is empty where only counts are known."""

    id: str
    queue: str
    gpu_type: str
    num_gpus: int | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    chunk: int = 1
    placement: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0
    submitted_s: float = 0
    started_s: float = 0
    time_limit_s: float | None = None
    topology: TopologyWish | None = None
    excluded_nodes: frozenset[str] = frozenset()
    protected_until_s: float | None = None
    last_checkpoint_s: float | None = None
    preemptible: bool = True
    # Told to stop already, and still holding its GPUs.
    evicting: bool = False
    preempted_count: int = 0
    subqueue: str | None = None
    user: str = ""
    licences: Mapping[str, int] = field(default_factory=dict)
    num_gpus_min: int | None = None
    num_nodes_min: int | None = None
    num_gpus_max: int | None = None
    num_nodes_max: int | None = None
    members_min: int | None = None
    members_alive: int | None = None
    broken_since_s: float | None = None
    array: str | None = None

    @property
    def size(self) -> int:
        """GPUs of the whole job."""
        if self.num_gpus is not None:
            return self.num_gpus
        return (self.num_nodes or 0) * (self.gpus_per_node or 0)


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs taken out for a time: a maintenance window, or a reservation for some queues.

    It takes `num_gpus` of `gpu_type` (None: of every type), or the named nodes whole. With `every_s`
    it comes again (a week is 604,800 s), the first time at `start_s`.
    """

    name: str
    kind: str  # "maintenance" or "reservation"
    start_s: float
    end_s: float
    num_gpus: int = 0
    queues: tuple[str, ...] = ()
    gpu_type: str | None = None
    nodes: tuple[str, ...] = ()
    every_s: float | None = None


@dataclass(frozen=True, slots=True)
class ShareNode:
    """A user or an account of a share tree; `shares` None means "as its parent"."""

    name: str
    shares: int | None
    usage: float | Fraction = 0
    is_user: bool = False
    children: tuple["ShareNode", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything one pass sees. No nodes: quotas are the only capacity (counts only)."""

    now_s: float
    policy: Policy = Policy()
    cohorts: tuple[Cohort, ...] = ()
    queues: tuple[Queue, ...] = ()
    # Levels above the node, outermost first.
    topology: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    running: tuple[RunningJob, ...] = ()
    pending: tuple[PendingJob, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    licences: Mapping[str, int] = field(default_factory=dict)
    subqueues: tuple[Subqueue, ...] = ()
    share_tree: tuple[ShareNode, ...] = ()
    # Jobs preempted in the last hour, for the hourly cap.
    num_preempted_last_hour: int = 0
