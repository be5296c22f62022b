"""One training run: meet, build, restore, then step, measure, evaluate and save until done."""

import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch imports it at the first optimizer; before the saver is forked it serves both
import torch.distributed as dist

from trainer.checkpoint import Checkpointer
from trainer.collectives import Ledger
from trainer.config import TrainerConfig
from trainer.control import Control
from trainer.dump import Dumper
from trainer.interval import DueByTime
from trainer.loader import Loader
from trainer.model import blocks_wrap
from trainer.oom import is_out_of_memory, report
from trainer.parallel import Spread, device_of_rank, fair_threads, group_join
from trainer.precision import LossScaler
from trainer.records import FINISHED, STOPPED, RecordWriter
from trainer.refusal import Refused
from trainer.reporting import Reporter
from trainer.saver import Saver
from trainer.state import random_set, random_state, state_of, updates_set
from trainer.step import Outcome, Stepper, Wanted
from trainer.verify import verify
from trainer.workload import workload_make


class SaveFailed(Exception):
    """The last state could not be saved."""


class Run:
    """The state of one rank's run."""

    def __init__(self, config: TrainerConfig, records: RecordWriter) -> None:
        self.config, self.records = config, records
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.control = Control(os.environ.get("TRAINYARD_CONTROL"))
        self.root = os.environ.get("TRAINYARD_CHECKPOINT_DIR")
        self.ledger = Ledger()
        self.step = 0
        self.checkpointer: Checkpointer | None = None
        self.saver: Saver | None = None
        self._saves_asked = self._profiles_asked = 0
        self._save_due = False
        self._nonfinite = 0

    def run(self) -> int:
        """Train to the end or to a stop; the exit status."""
        self.control.listen()
        if self.root and self.config.checkpoint.mode == "process":
            # Before there are threads, devices or groups that a fork would leave in pieces.
            self.saver = Saver()
        self._prepare()
        return self._phase("train", self._train)

    def _prepare(self) -> None:
        torch.set_num_threads(fair_threads())
        if self.records.path:
            Dumper(self.records.path, self.ledger.groups, self.ledger.sequence)
        self._phase("rendezvous", self._meet)
        self._phase("build", self._build)
        self._phase("restore", self._restore)

    def _phase(self, name: str, act: Callable[[], int | None]) -> int:
        self.records.phase(name, "begin")
        status = act()
        self.records.phase(name, "end")
        return status or 0

    # -- before the first step -------------------------------------------------------------------------

    def _meet(self) -> None:
        self.device = device_of_rank()
        # On CUDA the host only enqueues: its clock says nothing about a collective's length.
        self.ledger.on = self.device.type == "cpu"
        group_join(self.device, self.config.comm_timeout_s)

    def _build(self) -> None:
        config = self.config
        cache = os.environ.get("TRAINYARD_CACHE")
        # The same seed on every rank: sharding cuts one and the same model.
        torch.manual_seed(config.seed)
        self.workload = workload_make(config, Path(cache) if cache else None)
        num_parameters = sum(p.numel() for p in self.workload.model.parameters())
        if config.float8:
            from trainer.float8 import linears_swap

            linears_swap(self.workload.model, self.device)
        blocks_wrap(self.workload.model, config)
        self.spread = Spread(self.workload.model, config, self.device, self.ledger)
        self.spread.register_groups(self.ledger, self.records)
        settings = config.optimizer
        self.optimizer = torch.optim.AdamW(
            list(self.spread.locals.values()),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.scaler = LossScaler(on=config.precision == "fp16")
        # Different random numbers on each rank from here on: dropout masks must differ.
        torch.manual_seed(config.seed * 1_000_003 + self.rank + 1)
        self.reporter = Reporter(config, self.records, self.workload, self.device, self.ledger)
        self.reporter.begun(num_parameters)

    def _restore(self) -> None:
        config, updates = self.config, 0
        if self.root:
            entries = state_of(self.workload.model, self.optimizer, self.spread.locals)
            self.checkpointer = Checkpointer(
                Path(self.root),
                self.records,
                config.checkpoint,
                entries,
                {"model": self.workload.signature, "strategy": config.strategy, "seed": config.seed},
                self.saver,
            )
            updates = self._load(self.checkpointer, os.environ.get("TRAINYARD_RESUME") or "auto")
        self._stepper_make(updates)
        self._by_time = DueByTime(config.checkpoint, time.monotonic())

    def _load(self, keeper: Checkpointer, resume: str) -> int:
        """Take over a checkpoint's whole state; the updates that lie behind it."""
        facts = keeper.load(resume)
        if facts is None:
            return 0
        self.step, updates = int(facts["step"]), int(facts["updates"])
        self.scaler.restore(facts.get("scaler"))
        updates_set(self.optimizer, updates)
        self._restore_random(keeper, facts)
        return updates

    def _stepper_make(self, updates: int) -> None:
        config = self.config
        self.stepper = Stepper(
            config,
            self.spread,
            self.optimizer,
            Loader(
                self.workload.train,
                config,
                rank=self.rank,
                world_size=self.world_size,
                first_step=self.step,
                device=self.device,
            ),
            self.ledger,
            self.scaler,
        )
        self.stepper.updates = updates

    def _restore_random(self, checkpointer: Checkpointer, facts: dict[str, Any]) -> None:
        states = random_state(self.device)
        if checkpointer.load_extra(facts, self._random_names(states)):
            random_set(states, self.device)
        else:
            # Another number of ranks: there is no stream to go on with, but it must not start over either.
            torch.manual_seed(self.config.seed * 1_000_003 + self.rank + 1 + self.step * 8191)

    def _random_names(self, states: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"random.{self.rank}.{kind}": state for kind, state in states.items()}

    # -- steps -----------------------------------------------------------------------------------------

    def _train(self) -> int:
        self.spread.model.train()
        if self.config.gc_every_steps:
            # One rank that collects while the others compute makes all of them wait: all collect at the same step.
            gc.freeze()
            gc.disable()
        status = FINISHED
        while self.step < self.config.steps:
            outcome = self._one_step()
            self._judge(outcome)
            every = self.config.eval.every_steps
            if every and (self.step % every == 0 or self.step == self.config.steps):
                self._evaluate()
            if outcome.wanted.stop and self.step < self.config.steps:
                status = STOPPED
                break
            self._save_if_due(outcome.wanted)
            if self.config.gc_every_steps and self.step % self.config.gc_every_steps == 0:
                gc.collect(1)
        self._last_save()
        self._write_costs()
        return status

    def _one_step(self) -> Outcome:
        compiling = self.config.compile and self.reporter.num_steps == 0
        if compiling:
            self.records.phase("compile", "begin")
        outcome = self.stepper.step(self.step, self._wanted(), self._staged)
        if compiling:
            self.records.phase("compile", "end")
        self.step += 1
        # A window that is asked for while another is open begins when that one is written.
        profile = outcome.wanted.profile and not self.reporter.profiling
        if profile:
            self._profiles_asked = self.control.wishes.profile_id
        self.reporter.step(self.step, outcome, profile=profile)
        return outcome

    def _staged(self) -> int:
        return self.checkpointer.staged() if self.checkpointer else 0

    def _wanted(self) -> Wanted:
        wishes = self.control.look()
        keeper = self.checkpointer
        by_time = keeper is not None and self.rank == 0 and self._by_time.due(time.monotonic(), keeper.stalls_ns)
        return Wanted(
            stop=wishes.stop,
            save=wishes.save_id > self._saves_asked or by_time,
            busy=keeper is not None and not keeper.poll(),
            broken=keeper is not None and keeper.broken,
            profile=wishes.profile_id > self._profiles_asked,
        )

    def _judge(self, outcome: Outcome) -> None:
        """Training goes on over a bad batch, and ends where every batch is bad."""
        if outcome.finite:
            self._nonfinite = 0
            return
        if not self.scaler.exhausted:
            return  # fp16 looks for its scale this way
        self._nonfinite += 1
        self.records.write("nonfinite", step=self.step, loss=outcome.loss, grad_norm=outcome.grad_norm)
        if self.step == 1 or self._nonfinite > self.config.nonfinite_limit:
            rate = self.config.optimizer.lr
            raise Refused(
                f"The loss or its gradient is not finite at step {self.step}"
                + ("" if self.step == 1 else f" and at the {self._nonfinite - 1} steps before it")
                + f". Lower the learning rate ({rate:g}), warm up longer, look at the data, or use bf16."
            )

    @torch.no_grad()
    def _evaluate(self) -> None:
        begin = time.perf_counter_ns()
        self.records.phase("eval", "begin")
        self.spread.model.eval()
        self.ledger.on, measured = False, self.ledger.on
        size = self.config.rank_batch(self.world_size)
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for number in range(self.config.eval.batches):
            batch = self.workload.validation.batch((number * self.world_size + self.rank) * size, size)
            with self.spread.precision():
                total[0] += self.spread.model(*(tensor.to(self.device) for tensor in batch))
            total[1] += 1
        dist.all_reduce(total)
        self.ledger.on = measured
        self.spread.model.train()
        value = float(total[0] / total[1])
        tokens = self.config.eval.batches * size * self.workload.units_per_sample * self.world_size
        duration = time.perf_counter_ns() - begin
        self.records.write("eval", step=self.step, val_loss=value, dur_ns=duration, tokens=tokens)
        self.records.phase("eval", "end")
        if self.rank == 0:
            print(f"step {self.step}  validation loss {value:.4f}", flush=True)

    # -- saving ----------------------------------------------------------------------------------------

    def _save_if_due(self, wanted: Wanted) -> None:
        keeper, every = self.checkpointer, self.config.checkpoint.every_steps
        if keeper is None:
            return
        if wanted.broken:
            keeper.go_in_line()
        if wanted.save:
            self._saves_asked = self.control.wishes.save_id
        self._save_due = self._save_due or wanted.save or bool(every and self.step % every == 0)
        # A save that is due while another one is being written waits for it, and training does not.
        if self._save_due and not wanted.busy and self.step < self.config.steps:
            self._save_due = False
            self._begin_save(keeper)
            self._by_time.saved(time.monotonic())

    def _begin_save(self, keeper: Checkpointer) -> None:
        facts = {"updates": self.stepper.updates, "scaler": self.scaler.facts()}
        keeper.begin(self.step, facts, self._random_names(random_state(self.device)))

    def _last_save(self) -> None:
        """Save what is not saved yet, and know that it is."""
        keeper = self.checkpointer
        if keeper is None:
            return
        self.records.phase("save", "begin")
        keeper.settle()
        for _ in range(2):
            if keeper.last_step != self.step:
                self._begin_save(keeper)
                keeper.settle()
            lost = torch.tensor([float(keeper.broken), float(keeper.last_step != self.step)])
            dist.all_reduce(lost, group=keeper.group)
            if lost[1] == 0 or lost[0] == 0:
                break
            keeper.go_in_line()
        keeper.close()
        self.records.phase("save", "end")
        if lost[1] > 0:
            raise SaveFailed(f"The state of step {self.step} is not saved: {keeper.failure or 'the save failed'}.")

    # -- the end ---------------------------------------------------------------------------------------

    def _write_costs(self) -> None:
        """What keeping records has cost, measured where it was spent."""
        records, arrivals = self.records.spent_ns, self.stepper.arrivals.cost_ns
        self.records.write("cost", spent_ns=records + arrivals, records_ns=records, arrivals_ns=arrivals)

    def verify_resume(self, steps: int) -> int:
        """Train; load the checkpoint made half-way; train its second half again: every bit must be the same."""
        if self.root is None:
            raise Refused("--verify-resume saves a checkpoint: name its folder in TRAINYARD_CHECKPOINT_DIR.")
        self.config = replace(
            self.config, steps=steps, checkpoint=replace(self.config.checkpoint, mode="sync", every_steps=0)
        )
        os.environ["TRAINYARD_RESUME"] = "none"
        self._prepare()
        assert self.checkpointer is not None
        return self._phase("train", lambda: verify(self, self.checkpointer, steps))

    def explain(self, error: BaseException) -> None:
        """Say more about an error that numbers can explain."""
        if not is_out_of_memory(error):
            return
        nodes = self.world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        device = getattr(self, "device", torch.device("cpu"))
        found = report(self.config, device, world_size=self.world_size, nodes=nodes)
        self.records.write("oom", step=self.step, **found)
        print(f"trainer: out of memory at step {self.step + 1}. {found['advice']}", file=sys.stderr, flush=True)

    def leave(self) -> None:
        """Tear down in an order that does not abort: no save under way, all here, then the groups."""
        if not dist.is_initialized():
            return
        dist.barrier()
        dist.destroy_process_group()
