"""One training run: meet, build, restore, then step, measure, evaluate and save until done."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint import Checkpointer, TrainState
from trainer.config import TrainerConfig
from trainer.control import Control
from trainer.data import Samples, corpus_open, share_of_rank, validation_batches
from trainer.model import LanguageModel, flops_per_token
from trainer.parallel import (
    clip_gradients,
    device_of_rank,
    fair_threads,
    gradient_sync,
    group_join,
    model_spread,
)
from trainer.records import FINISHED, STOPPED, RecordWriter
from trainer.refusal import Refused


class Run:
    """The state of one rank's run."""

    def __init__(self, config: TrainerConfig, records: RecordWriter) -> None:
        self.config, self.records = config, records
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.control = Control(os.environ.get("TRAINYARD_CONTROL"))
        self.step = 0
        self.saves_asked = 0

    def run(self) -> int:
        """Train to the end or to a stop; the exit status."""
        self.control.listen()
        torch.set_num_threads(fair_threads())
        self._phase("rendezvous", self._meet)
        self._phase("build", self._build)
        self._phase("restore", self._restore)
        return self._phase("train", self._train)

    def _phase(self, name: str, act: Callable[[], int | None]) -> int:
        self.records.phase(name, "begin")
        status = act()
        self.records.phase(name, "end")
        return status or 0

    def _meet(self) -> None:
        self.device = device_of_rank()
        group_join(self.device, self.config.comm_timeout_s)
        self.records.write(
            "group",
            name="world",
            ranks=list(range(self.world_size)),
            purpose="training",
            backend=dist.get_backend(),
        )

    def _build(self) -> None:
        config = self.config
        cache = os.environ.get("TRAINYARD_CACHE")
        corpus = corpus_open(
            config.data.corpus,
            validation_fraction=config.data.validation_fraction,
            sequence_length=config.data.sequence_length,
            cache=Path(cache) if cache else None,
        )
        self.samples = Samples(corpus.train, config.data.sequence_length, config.seed)
        self.validation = Samples(corpus.validation, config.data.sequence_length, 0)
        # The same seed on every rank: sharding cuts one and the same model.
        torch.manual_seed(config.seed)
        model = LanguageModel(config)
        num_parameters = sum(p.numel() for p in model.parameters())
        self.model = model_spread(model, config, self.device)
        settings = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.state = TrainState(self.model, self.optimizer)
        if self.rank == 0:
            self.records.write(
                "config",
                rank=0,
                num_parameters=num_parameters,
                flops_per_token=flops_per_token(config, num_parameters),
                corpus=corpus.source,
                corpus_licence=corpus.licence,
                corpus_bytes=corpus.num_bytes,
                validation_bytes=len(corpus.validation),
                strategy=config.strategy,
                precision=config.precision,
                global_batch_size=config.global_batch_size,
                tokens_per_step=config.global_batch_size * config.data.sequence_length,
                steps=config.steps,
            )

    def _restore(self) -> None:
        config = self.config
        root = os.environ.get("TRAINYARD_CHECKPOINT_DIR")
        self.checkpointer: Checkpointer | None = None
        if root:
            self.checkpointer = Checkpointer(
                Path(root),
                self.records,
                mode=config.checkpoint.mode,
                keep_last=config.checkpoint.keep_last,
                keep_every=config.checkpoint.keep_every,
                facts={"strategy": config.strategy, "seed": config.seed},
            )
            self.step = self.checkpointer.load(self.state, os.environ.get("TRAINYARD_RESUME", "auto"))

    def _train(self) -> int:
        config = self.config
        self.model.train()
        status = FINISHED
        while self.step < config.steps:
            stop, save = self._one_step()
            every = config.eval.every_steps
            if every and (self.step % every == 0 or self.step == config.steps):
                self._evaluate()
            due = config.checkpoint.every_steps and self.step % config.checkpoint.every_steps == 0
            if self.checkpointer and (due or save) and not stop and self.step < config.steps:
                self.checkpointer.save(self.step, self.state)
            if stop and self.step < config.steps:
                status = STOPPED
                break
        self._last_save()
        return status

    def _last_save(self) -> None:
        if self.checkpointer is None:
            return
        self.checkpointer.settle()
        if self.checkpointer.last_step != self.step:
            self.records.phase("save", "begin")
            self.checkpointer.save(self.step, self.state, wait=True)
            self.records.phase("save", "end")

    def _one_step(self) -> tuple[bool, bool]:
        """One optimizer step; whether all ranks agreed to stop, and to save."""
        config = self.config
        clock = _Clock()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, self.step)
        losses = torch.zeros((), device=self.device)
        count = 0
        for micro in range(config.accumulation):
            first, count = share_of_rank(
                step=self.step,
                micro=micro,
                global_batch_size=config.global_batch_size,
                accumulation=config.accumulation,
                rank=self.rank,
                world_size=self.world_size,
            )
            inputs_BT, targets_BT = self.samples.batch(first, count)
            inputs_BT, targets_BT = inputs_BT.to(self.device), targets_BT.to(self.device)
            clock.mark("data_wait")
            # Reduce gradients once a step: each reduce crosses the network.
            gradient_sync(self.model, micro == config.accumulation - 1)
            loss = self.model(inputs_BT, targets_BT) / config.accumulation
            clock.mark("forward")
            loss.backward()
            losses += loss.detach()
            clock.mark("backward")
        norm = clip_gradients(self.model, config.optimizer.clip_norm)
        clock.mark("comm_transfer")
        loss_mean, stop, save = self._agree(losses)
        clock.mark("comm_wait")
        if not math.isfinite(loss_mean):
            raise Refused(
                f"The loss is not finite at step {self.step + 1}. Lower the learning rate "
                f"({config.optimizer.lr:g}), warm up longer, or clip gradients."
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        clock.mark("optimizer")
        tokens = count * config.accumulation * config.data.sequence_length
        self.records.write(
            "step",
            step=self.step,
            dur_ns=clock.total_ns(),
            seg=clock.segments,
            tokens=tokens,
            loss=loss_mean,
            grad_norm=float(norm),
            lr=self.optimizer.param_groups[0]["lr"],
        )
        if self.rank == 0 and (self.step % config.log_every == 0 or self.step == config.steps):
            rate = tokens * self.world_size / (clock.total_ns() / 1e9)
            print(f"step {self.step}/{config.steps}  loss {loss_mean:.4f}  {rate:,.0f} tokens/s", flush=True)
        return stop, save

    def _agree(self, loss: Tensor) -> tuple[float, bool, bool]:
        """The mean loss, and whether any rank was asked to stop or save: all ranks learn it at the same step."""
        wishes = self.control.look()
        wanted = float(wishes.save_id > self.saves_asked)
        values = torch.tensor([0.0, float(wishes.stop), wanted], device=self.device)
        values[0] = loss / self.world_size
        dist.all_reduce(values)
        mean, stop, save = values.tolist()
        if save:
            self.saves_asked = wishes.save_id
        return mean, stop > 0, save > 0

    @torch.no_grad()
    def _evaluate(self) -> None:
        begin = time.perf_counter_ns()
        self.records.phase("eval", "begin")
        self.model.eval()
        config = self.config
        size = config.micro_batch_size(self.world_size)
        total = torch.zeros(2, device=self.device)
        for inputs_BT, targets_BT in validation_batches(
            self.validation,
            batches=config.eval.batches,
            batch_size=size,
            rank=self.rank,
            world_size=self.world_size,
        ):
            total[0] += self.model(inputs_BT.to(self.device), targets_BT.to(self.device))
            total[1] += 1
        dist.all_reduce(total)
        self.model.train()
        value = float(total[0] / total[1])
        duration = time.perf_counter_ns() - begin
        self.records.write("eval", step=self.step, val_loss=value, dur_ns=duration)
        self.records.phase("eval", "end")
        if self.rank == 0:
            print(f"step {self.step}  validation loss {value:.4f}", flush=True)

    def leave(self) -> None:
        """Tear down in an order that does not abort: no save under way, all here, then the groups."""
        if not dist.is_initialized():
            return
        dist.barrier()
        dist.destroy_process_group()


class _Clock:
    """Splits one step into segments that sum to its duration exactly."""

    def __init__(self) -> None:
        self._begin = self._last = time.perf_counter_ns()
        self.segments: dict[str, int] = {}

    def mark(self, segment: str) -> None:
        """The time since the mark before belongs to this segment."""
        now = time.perf_counter_ns()
        self.segments[segment] = self.segments.get(segment, 0) + now - self._last
        self._last = now

    def total_ns(self) -> int:
        """From the first instant to the last mark."""
        return self._last - self._begin


def learning_rate(config: TrainerConfig, step: int) -> float:
    """Linear warm-up, then a cosine down to ``min_lr_ratio`` at the last step."""
    settings = config.optimizer
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    span = max(1, config.steps - settings.warmup_steps)
    place = min(1.0, (step - settings.warmup_steps) / span)
    low = settings.min_lr_ratio
    return settings.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * place)))
