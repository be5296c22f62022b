"""One optimizer step: load, forward, backward, agree, clip, update; and where its time went."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.arrivals import Arrivals
from trainer.collectives import Collective, Ledger
from trainer.config import TrainerConfig
from trainer.loader import Loader
from trainer.parallel import Spread
from trainer.precision import LossScaler
from trainer.records import SEGMENTS


@dataclass(frozen=True)
class Wanted:
    """What this rank wants all ranks to know."""

    stop: bool = False
    save: bool = False
    busy: bool = False
    broken: bool = False
    profile: bool = False

    def numbers(self) -> list[float]:
        """For the sum over ranks."""
        return [float(self.stop), float(self.save), float(self.busy), float(self.broken), float(self.profile)]

    @classmethod
    def of(cls, numbers: list[float]) -> "Wanted":
        """True where any rank says so."""
        return cls(*(number > 0 for number in numbers))


NUM_WISHES = 5


@dataclass(frozen=True)
class Outcome:
    """What all ranks know after a step. ``dur_ns`` is the sum of ``segments``."""

    loss: float
    grad_norm: float
    finite: bool
    wanted: Wanted
    dur_ns: int
    segments: dict[str, int]
    entries: list[Collective] = field(default_factory=list)
    lr: float = 0.0


class StepClock:
    """Splits a step into segments that sum to its duration exactly; collectives are taken out of their segment.

    On CUDA the host runs ahead: forward and backward are then measured by events, which are complete once the ranks
    have agreed, and scaled into the step's time on the host.
    """

    def __init__(self, ledger: Ledger, device: torch.device) -> None:
        self._ledger = ledger
        self._begin = self._last = time.perf_counter_ns()
        self._seen = 0
        self.exposed_ns = 0
        self.segments = dict.fromkeys(SEGMENTS, 0)
        self._events: list[tuple[str, Any]] | None = [] if device.type == "cuda" else None
        self._event("")

    def mark(self, segment: str) -> None:
        """The time since the mark before belongs to this segment, less the collectives in it."""
        now = time.perf_counter_ns()
        entries = self._ledger.entries
        spent = now - self._last
        exposed = min(sum(entry.exposed_ns for entry in entries[self._seen :]), spent)
        self._seen = len(entries)
        self.exposed_ns += exposed
        self.segments[segment] += spent - exposed
        self._last = now
        self._event(segment)

    def finish(self, waited_ns: int) -> int:
        """Divide what collectives took into waiting for others and moving data; the step's duration."""
        waited_ns = min(waited_ns, self.exposed_ns)
        self.segments["comm_wait"] += waited_ns
        self.segments["comm_transfer"] += self.exposed_ns - waited_ns
        duration = self._last - self._begin
        if self._events is not None:
            self._by_events(duration)
        return duration

    def _event(self, segment: str) -> None:
        if self._events is not None and segment in ("", "data_wait", "forward", "backward"):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append((segment, event))

    def _by_events(self, duration: int) -> None:
        assert self._events is not None
        measured = {"forward": 0, "backward": 0}
        for (_, before), (segment, after) in pairwise(self._events):
            if segment in measured:
                measured[segment] += int(before.elapsed_time(after) * 1e6)
        room = duration - self.segments["data_wait"] - self.segments["checkpoint"]
        whole = max(sum(measured.values()), 1)
        for segment, value in measured.items():
            self.segments[segment] = min(value, room * value // whole)
        for segment in ("comm_wait", "comm_transfer", "other"):
            self.segments[segment] = 0
        self.segments["optimizer"] = 0
        self.segments["optimizer"] = duration - sum(self.segments.values())


class Stepper:
    """Takes optimizer steps."""

    def __init__(
        self,
        config: TrainerConfig,
        spread: Spread,
        optimizer: torch.optim.Optimizer,
        loader: Loader,
        ledger: Ledger,
        scaler: LossScaler,
    ) -> None:
        self.config, self.spread, self.optimizer = config, spread, optimizer
        self.loader, self.ledger, self.scaler = loader, ledger, scaler
        self.passes = config.passes(spread.world_size)
        self.updates = 0
        self.arrivals = Arrivals(spread.instances)

    def step(self, done: int, wanted: Wanted, before_update: Callable[[], int]) -> Outcome:
        """Step ``done + 1``. ``before_update()`` is called before parameters change; it returns what it waited."""
        clock = StepClock(self.ledger, self.spread.device)
        rate = learning_rate(self.config, done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self._passes(clock)
        gradients = self.spread.gradients()
        loss_mean, norm, wanted, waited_ns = self._agree(gradients, loss, wanted)
        clock.mark("optimizer")
        before_update()
        clock.mark("checkpoint")
        finite = math.isfinite(norm) and math.isfinite(loss_mean)
        if finite:
            self._update(norm)
        self.scaler.step(finite)
        self.spread.forget_gradients()
        clock.mark("optimizer")
        duration = clock.finish(waited_ns)
        entries = self.ledger.take()
        return Outcome(loss_mean, norm, finite, wanted, duration, clock.segments, entries, rate)

    def _passes(self, clock: StepClock) -> Tensor:
        spread, model = self.spread, self.spread.model
        total = torch.zeros((), device=spread.device)
        for micro in range(self.passes):
            batch = self.loader.next()
            clock.mark("data_wait")
            # Reduce gradients once a step: each reduce crosses the network.
            spread.sync_gradients(micro == self.passes - 1)
            with spread.precision():
                loss = model(*batch) / self.passes
            clock.mark("forward")
            (loss * self.scaler.scale if self.scaler.on else loss).backward()
            self.ledger.backward_ended()
            total += loss.detach()
            clock.mark("backward")
        return total

    def _agree(self, gradients: list[Tensor], loss: Tensor, wanted: Wanted) -> tuple[float, float, Wanted, int]:
        """Mean loss, norm of the true gradients, every rank's wishes, and the time spent waiting for other ranks.

        One small collective carries all of it, a maximum: each rank has a place of its own for its numbers, a wish is
        one where any rank has it, and of each collective of this step the last arrival is known afterwards.
        """
        ranks, rank = self.spread.world_size, self.spread.rank
        mine = torch.stack([self.spread.squares(gradients), loss]).tolist()
        numbers = [-math.inf] * (2 * ranks)
        # A maximum would lose a NaN; infinite is just as bad, and is not lost.
        numbers[rank], numbers[ranks + rank] = (value if math.isfinite(value) else math.inf for value in mine)
        numbers += wanted.numbers()
        numbers += self.arrivals.numbers(self.ledger.entries)
        values = torch.tensor(numbers, dtype=torch.float64, device=self.spread.device)
        begin = time.perf_counter_ns()
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        agreed = values.tolist()
        # What is left to wait for here is next to nothing: the last reduction has just brought all ranks together.
        self.ledger.add("world", "all_reduce", values.nbytes, begin)
        norm = math.sqrt(sum(agreed[:ranks])) / self.scaler.scale
        wishes = 2 * ranks + NUM_WISHES
        waited_ns = self.arrivals.waited_ns(self.ledger.entries, agreed[wishes:])
        return sum(agreed[ranks : 2 * ranks]) / ranks, norm, Wanted.of(agreed[2 * ranks : wishes]), waited_ns

    def _update(self, norm: float) -> None:
        """Clip, unscale and step in one pass: the fused kernel divides each gradient by ``grad_scale``."""
        limit = self.config.optimizer.clip_norm
        divisor = self.scaler.scale * max(1.0, norm / limit if limit else 1.0)
        scale = None if divisor == 1.0 else torch.tensor(divisor, dtype=torch.float32, device=self.spread.device)
        self.optimizer.grad_scale = scale  # type: ignore[attr-defined]
        self.optimizer.step()
        self.updates += 1


def learning_rate(config: TrainerConfig, step: int) -> float:
    """Linear warm-up, then a cosine down to ``min_lr_ratio`` at the last step."""
    settings = config.optimizer
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    span = max(1, config.steps - settings.warmup_steps)
    place = min(1.0, (step - settings.warmup_steps) / span)
    low = settings.min_lr_ratio
    return settings.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * place)))
