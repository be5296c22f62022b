"""Where a rank's time went, out of its own records: stretches that meet and never overlap. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

PHASE_CAUSE = {
    "import": "startup",
    "rendezvous": "startup",
    "build": "startup",
    "restore": "restore",
    "compile": "compile",
    "save": "checkpoint_stall",
    "teardown": "teardown",
}
TRAINING = ("train", "")


@dataclass
class RankTime:
    """The time of one rank of one restart, from its start record on; all of it in nanoseconds.

    Steps up to ``max_step_done`` were done before the restart: doing them again is recomputed work.
    Until the first step begins everything is start-up, unless a phase says better.
    """

    rank: int
    restart: int
    max_step_done: int = 0
    cursor_ns: int | None = None
    from_ns: int = 0
    n: int = 0
    first_step: int | None = None
    last_step: int | None = None
    num_steps: int = 0
    tokens: int = 0
    last_done: int = 0
    exited: bool = False
    ended: bool = False
    saving_since_ns: int | None = None
    phases: list[str] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For a state file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Out of a state file."""
        return cls(**data)

    def begin(self, t_ns: int, phase: str | None = None) -> None:
        """The rank's first instant. A program without records is in the phase ``program`` all its life."""
        if self.cursor_ns is None:
            self.cursor_ns = self.from_ns = t_ns
            if phase is not None:
                self.phases = [phase]

    def advance(self, t_ns: int) -> None:
        """Time has passed and nothing has changed."""
        if self.cursor_ns is not None and not self.ended:
            self._spend(t_ns, self._cause())

    def feed(self, record: Mapping[str, Any], least_comm_wait_ns: int | None = None) -> None:
        """Account for the time up to a record. Records of one rank come in the order of their writing.

        ``least_comm_wait_ns``: the shortest wait of any known rank in this step, when all have reported it.
        """
        kind, at = record["k"], int(record["t_ns"])
        if kind == "start":
            self.begin(at)
        if self.cursor_ns is None or self.ended:
            return
        if kind == "step":
            self._step(record, at, least_comm_wait_ns)
        elif kind == "phase":
            self._spend(at, self._cause())
            self._phase(record)
        elif kind == "ckpt":
            self._checkpoint(record, at)
        elif kind == "exit":
            self._spend(at, self._lost() if record.get("status") == "error" else self._cause())
            self.exited = True

    def end(self, t_ns: int, *, lost: bool) -> None:
        """The rank is dead. ``lost``: it failed, and what it did since its last record came to nothing."""
        if self.cursor_ns is None or self.ended:
            return
        self._spend(t_ns, self._lost() if lost else self._cause())
        self.ended = True

    def cut(self) -> dict[str, Any] | None:
        """The window since the last cut, or None when no time has passed."""
        if self.cursor_ns is None or self.cursor_ns <= self.from_ns:
            return None
        window = {
            "rank": self.rank,
            "restart": self.restart,
            "n": self.n,
            "from_ns": self.from_ns,
            "to_ns": self.cursor_ns,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "num_steps": self.num_steps,
            "tokens": self.tokens,
            "seconds": {cause: length / 1e9 for cause, length in self.causes.items()},
        }
        self.n += 1
        self.from_ns, self.causes = self.cursor_ns, {}
        self.first_step = self.last_step = None
        self.num_steps = self.tokens = 0
        return window

    def _top(self) -> str:
        """The innermost phase; empty for a script that reports steps without phases."""
        return self.phases[-1] if self.phases else ""

    def _cause(self) -> str:
        if self.exited:
            return "teardown"
        top = self._top()
        if top in PHASE_CAUSE:
            return PHASE_CAUSE[top]
        if self.saving_since_ns is not None:
            return "checkpoint_stall"
        if top in TRAINING and not self.last_done:
            return "startup"
        return "recomputed" if 0 < self.last_done < self.max_step_done else "productive"

    def _lost(self) -> str:
        """The cause of time that a failure made worthless: a step was in flight and must be done again."""
        cause = self._cause()
        return "recomputed" if cause == "productive" or (cause == "startup" and self._top() == "train") else cause

    def _phase(self, record: Mapping[str, Any]) -> None:
        name = str(record.get("name"))
        if record.get("event") == "begin":
            self.phases.append(name)
            # Ends that were never written must not let the stack grow without bound.
            del self.phases[:-32]
        elif name in self.phases:
            while self.phases.pop() != name:
                pass

    def _checkpoint(self, record: Mapping[str, Any], at: int) -> None:
        """A save stands still from its beginning for ``stall_ns``, or until the next step begins."""
        event = record.get("event")
        if event == "begin":
            self._spend(at, self._cause())
            self.saving_since_ns = at
        elif self.saving_since_ns is not None and event in ("staged", "durable", "failed"):
            stall = record.get("stall_ns")
            self._spend(at if stall is None else min(at, self.saving_since_ns + int(stall)), self._cause())
            self.saving_since_ns = None

    def _step(self, record: Mapping[str, Any], at: int, least_comm_wait_ns: int | None) -> None:
        step, duration = int(record["step"]), int(record.get("dur_ns") or 0)
        assert self.cursor_ns is not None
        begin = max(self.cursor_ns, at - duration)
        again = step <= self.max_step_done
        before = self._cause()
        self._spend(begin, "recomputed" if again and before == "productive" else before)
        self.saving_since_ns = None
        if again:
            self._spend(at, "recomputed")
        else:
            self._split(at, duration, record.get("seg") or {}, least_comm_wait_ns)
        self.last_done = step
        self.first_step = step if self.first_step is None else self.first_step
        self.last_step = step
        self.num_steps += 1
        self.tokens += int(record.get("tokens") or 0)

    def _split(self, at: int, duration: int, segments: Mapping[str, int], least_comm_wait_ns: int | None) -> None:
        """A step's own segments, scaled to the time that is left for it; the rest is productive."""
        assert self.cursor_ns is not None
        length = max(0, at - self.cursor_ns)
        whole = max(duration, sum(segments.values()))
        parts = {
            "data_wait": segments.get("data_wait", 0),
            "checkpoint_stall": segments.get("checkpoint", 0),
        }
        if least_comm_wait_ns is not None:
            # The last to arrive waits least; what others wait longer, they wait for it.
            parts["straggler"] = max(0, segments.get("comm_wait", 0) - least_comm_wait_ns)
        if whole > 0:
            for cause, value in parts.items():
                self._spend(min(at, self.cursor_ns + length * value // whole), cause)
        self._spend(at, "productive")

    def _spend(self, until_ns: int, cause: str) -> None:
        """The time up to an instant goes to a cause. A clock that was set back spends nothing."""
        if self.cursor_ns is None or until_ns <= self.cursor_ns:
            return
        self.causes[cause] = self.causes.get(cause, 0) + until_ns - self.cursor_ns
        self.cursor_ns = until_ns
