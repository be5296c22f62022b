"""What a job asks for in space, checked: equal requests share one shape, and one answer."""

from dataclasses import dataclass, field

from scheduler.plan import Refusal
from scheduler.snapshot import PendingJob, RunningJob, TopologyWish

# More than any machine room holds; beyond it a number is a slip of the pen, and would not fit the arrays.
MAX_GPUS = 100_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """`num_workers` workers of `worker` GPUs each; `spread`: each on a node of its own.

    `required` and `preferred` are level numbers (0 is the outermost, the node is the last), `slices`
    pairs of level number and size in workers, outermost first.
    """

    num_workers: int
    worker: int
    spread: bool
    required: int | None = None
    preferred: int | None = None
    slices: tuple[tuple[int, int], ...] = ()
    excluded: frozenset[str] = frozenset()
    # GPUs of the whole job.
    size: int = field(init=False, compare=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.num_workers * self.worker)
        wish = (self.required, self.preferred, self.slices, self.excluded)
        object.__setattr__(self, "_hash", hash((self.num_workers, self.worker, self.spread, wish)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_anywhere(self) -> bool:
        """Whether any nodes will do: it has no wish of topology."""
        return self.required is None and self.preferred is None and not self.slices


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request can never be served as it is."""

    code: Refusal
    message: str


def _count(value: object) -> bool:
    return type(value) is int and 0 < value <= MAX_GPUS


def shape_of(job: PendingJob | RunningJob, levels: tuple[str, ...]) -> Shape | Refused:
    """The job's shape on a topology with these levels above the node, or why there is none."""
    if job.num_gpus is not None:
        if not _count(job.num_gpus) or not _count(job.chunk):
            return Refused(Refusal.BAD_SIZE, f"A job asks for 1 to {MAX_GPUS} GPUs, in workers of at least one.")
        if job.num_gpus % job.chunk:
            message = f"{job.num_gpus} GPUs are not a whole number of workers with {job.chunk} GPUs each."
            return Refused(Refusal.BAD_SIZE, message)
        workers, worker, spread = job.num_gpus // job.chunk, job.chunk, False
    else:
        if not _count(job.num_nodes) or not _count(job.gpus_per_node):
            return Refused(Refusal.BAD_SIZE, "A job asks for a number of GPUs, or for nodes and GPUs on each.")
        workers, worker, spread = job.num_nodes or 0, job.gpus_per_node or 0, True
        if workers * worker > MAX_GPUS:
            return Refused(Refusal.BAD_SIZE, f"A job asks for 1 to {MAX_GPUS} GPUs.")
    if job.topology is None:
        return Shape(workers, worker, spread, excluded=job.excluded_nodes)
    return _with_topology(workers, worker, spread, job.topology, job.excluded_nodes, levels)


def _with_topology(
    workers: int, worker: int, spread: bool, wish: TopologyWish, excluded: frozenset[str], levels: tuple[str, ...]
) -> Shape | Refused:
    number = {name: i for i, name in enumerate(levels)}
    number["node"] = len(levels)
    asked = [wish.required, wish.preferred, *(s.level for s in wish.slices)]
    unknown = [name for name in asked if name is not None and name not in number]
    if unknown:
        known = ", ".join([*levels, "node"])
        message = f"This cluster has no topology level {unknown[0]}; it has {known}."
        return Refused(Refusal.UNKNOWN_LEVEL, message)
    slices: list[tuple[int, int]] = []
    outer = workers
    for piece in sorted(wish.slices, key=lambda s: number[s.level]):
        size = piece.size // worker if _count(piece.size) and piece.size % worker == 0 else 0
        if size == 0 or outer % size:
            message = f"Groups of {piece.size} GPUs do not divide {outer * worker} GPUs in workers of {worker}."
            return Refused(Refusal.BAD_SLICES, message)
        slices.append((number[piece.level], size))
        outer = size
    return Shape(
        workers,
        worker,
        spread,
        required=None if wish.required is None else number[wish.required],
        preferred=None if wish.preferred is None else number[wish.preferred],
        slices=tuple(slices),
        excluded=excluded,
    )
