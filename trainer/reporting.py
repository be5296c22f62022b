"""What one rank says about its steps: their times, memory, collectives, throughput, and profiles on demand."""

import statistics

import torch
import torch.distributed as dist

from trainer.collectives import Ledger
from trainer.config import TrainerConfig
from trainer.oom import memory_now
from trainer.parallel import DTYPES
from trainer.profiling import Window
from trainer.records import RecordWriter
from trainer.step import Outcome
from trainer.throughput import Peak, peak_of, utilisation
from trainer.workload import Workload


class Reporter:
    """Writes a record of every step, and the dearer ones every ``log_every`` and ``ledger_every`` steps."""

    def __init__(
        self, config: TrainerConfig, records: RecordWriter, workload: Workload, device: torch.device, ledger: Ledger
    ) -> None:
        self.config, self.records, self.workload = config, records, workload
        self.device, self.ledger = device, ledger
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.num_steps = 0
        self._tokens = config.rank_batch(self.world_size) * config.passes(self.world_size) * workload.units_per_sample
        self._durations_ns: list[int] = []
        self._window: Window | None = None
        self._peak: Peak | None = None

    def begun(self, num_parameters: int) -> None:
        """Say what is trained and how; rank 0 speaks for all."""
        config = self.config
        if self.rank != 0:
            return
        self.records.write(
            "config",
            rank=0,
            workload=config.workload,
            num_parameters=num_parameters,
            flops_per_token=self.workload.flops_per_unit,
            **self.workload.facts,
            strategy=config.strategy,
            precision=config.precision,
            activation_checkpointing=config.activation_checkpointing,
            global_batch_size=config.global_batch_size,
            passes=config.passes(self.world_size),
            tokens_per_step=config.global_batch_size * self.workload.units_per_sample,
            steps=config.steps,
            device=str(self.device),
            threads=torch.get_num_threads(),
        )

    def step(self, number: int, outcome: Outcome, *, profile: bool) -> None:
        """Record that step ``number`` (from 1) is done; ``profile`` opens a profiler's window on the next ones."""
        config = self.config
        self.num_steps += 1
        self._durations_ns.append(outcome.dur_ns)
        self.records.write(
            "step",
            step=number,
            dur_ns=outcome.dur_ns,
            seg=outcome.segments,
            tokens=self._tokens,
            loss=outcome.loss,
            grad_norm=outcome.grad_norm,
            lr=outcome.lr,
        )
        self._profile(number, profile)
        if config.ledger_every and number % config.ledger_every == 0:
            self._write_ledger(number, outcome)
        if number % config.log_every == 0 or number == 1:
            self.records.write("mem", step=number, **memory_now(self.device))
        if self.rank == 0 and (number % config.log_every == 0 or number == config.steps):
            self._write_throughput(number, outcome)
        del self._durations_ns[: -max(config.log_every, 50)]

    @property
    def profiling(self) -> bool:
        """Whether a profiler's window is open."""
        return self._window is not None

    def _profile(self, number: int, asked: bool) -> None:
        if self._window is not None:
            summary = self._window.step()
            if summary is not None:
                self._window = None
                self.records.write("profile", step=number, **summary)
        elif asked:
            self._window = Window(self.config.profile_steps, self.device)

    def _write_ledger(self, number: int, outcome: Outcome) -> None:
        if not outcome.entries:
            return
        base = outcome.entries[0].begin_ns
        rows = [
            [e.group, e.op, e.num_bytes, e.begin_ns - base, e.end_ns - e.begin_ns, e.exposed_ns]
            for e in outcome.entries
        ]
        self.records.write("collectives", step=number, base_ns=base, sequence=self.ledger.sequence, rows=rows)

    def _write_throughput(self, number: int, outcome: Outcome) -> None:
        config = self.config
        recent = self._durations_ns[-config.log_every :]
        tokens_per_s = self._tokens * self.world_size / (statistics.median(recent) / 1e9)
        if self._peak is None:
            self._peak = peak_of(self.device, DTYPES[config.precision] or torch.float32)
        found = utilisation(
            tokens_per_s=tokens_per_s,
            flops_per_token=self.workload.flops_per_unit,
            num_ranks=self.world_size,
            peak_flops=self._peak.flops,
            checkpointing=config.activation_checkpointing,
        )
        self.records.write(
            "throughput",
            step=number,
            tokens_per_s=found.tokens_per_s,
            flops_per_s=found.flops_per_s,
            mfu=found.mfu,
            hfu=found.hfu,
            fault=found.fault,
            peak_flops=self._peak.flops,
            peak_source=self._peak.source,
        )
        share = f"MFU {found.mfu:.1%}" if found.mfu is not None else found.fault
        place = f"step {number}/{config.steps}  loss {outcome.loss:.4f}"
        print(f"{place}  {tokens_per_s:,.0f} tokens/s  {share}", flush=True)
