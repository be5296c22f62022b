"""Saving and loading with torch's distributed checkpoint, around the folder protocol of ``manifest``."""

import os
import shutil
import threading
import time
import warnings
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from trainer import manifest
from trainer.records import RecordWriter
from trainer.refusal import Refused

# The pickled metadata comes from a folder whose manifest has just been verified.
warnings.filterwarnings("ignore", message=".*weights_only.*")
SAVE_DEADLINE = timedelta(minutes=10)


class TrainState(Stateful):
    """Model and optimizer in the sharded form that any number of ranks can load."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """What is saved."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what was loaded; keys that are missing or too many are an error."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optimizer"],
            options=StateDictOptions(strict=True),
        )


class Checkpointer:
    """Saves every rank's share, commits on rank 0, and falls back to the newest that verifies."""

    def __init__(
        self,
        root: Path,
        records: RecordWriter,
        *,
        mode: str,
        keep_last: int,
        keep_every: int,
        facts: dict[str, Any],
    ) -> None:
        self.root, self.records, self.mode = root, records, mode
        self.keep_last, self.keep_every, self.facts = keep_last, keep_every, facts
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.fence = os.environ.get("TRAINYARD_FENCE", "")
        # Its own group: collectives of a background save must not meet those of training.
        self.group = dist.new_group(backend="gloo", timeout=SAVE_DEADLINE)
        self._pending: Future[Any] | None = None
        self._commit: threading.Thread | None = None
        self._restored: Path | None = None
        self.last_step = -1
        if self.rank == 0:
            if self.fence:
                manifest.fence_take(root, self.fence)
            root.mkdir(parents=True, exist_ok=True)
            for left in root.glob("step_*.tmp"):
                shutil.rmtree(left, ignore_errors=True)
        dist.barrier(self.group)

    def save(self, step: int, state: TrainState, *, wait: bool = False) -> int:
        """Save; the nanoseconds for which training stood still."""
        begin = time.perf_counter_ns()
        self.settle()
        final = manifest.step_folder(self.root, step)
        tmp = final.with_name(final.name + ".tmp")
        self.records.write("ckpt", event="begin", step=step, path=str(final), mode=self.mode)
        self.last_step = step
        content = {"train": state}
        writer = dcp.FileSystemWriter(tmp, single_file_per_rank=True, sync_files=True, thread_count=1)
        if self.mode == "thread" and not wait:
            answer = dcp.async_save(content, storage_writer=writer, process_group=self.group)
            self._pending = answer if isinstance(answer, Future) else answer.upload_completion
            stall = time.perf_counter_ns() - begin
            self._commit = threading.Thread(
                target=self._finish, args=(self._pending, step, tmp, final, begin, stall), name="checkpoint-commit"
            )
            self._commit.start()
            return stall
        done: Future[Any] = Future()
        try:
            dcp.save(content, storage_writer=writer, process_group=self.group)
            done.set_result(None)
        except (OSError, dcp.CheckpointException) as error:
            done.set_exception(error)
        stall = time.perf_counter_ns() - begin
        self._finish(done, step, tmp, final, begin, stall)
        return time.perf_counter_ns() - begin

    def _finish(
        self, saved: "Future[Any]", step: int, tmp: Path, final: Path, begin: int, stall_ns: int
    ) -> None:
        """Commit a save whose files are written (rank 0), or clear away what a failed one left."""
        try:
            saved.result()
            if self.rank != 0:
                return
            if self.fence:
                manifest.fence_check(self.root, self.fence)
            facts = {**self.facts, "step": step, "world_size": self.world_size, "fence": self.fence}
            digest, size = manifest.commit(tmp, final, facts)
        except (OSError, RuntimeError, dcp.CheckpointException, manifest.FenceLost) as error:
            if self.rank == 0:
                shutil.rmtree(tmp, ignore_errors=True)
            self.records.write("ckpt", event="failed", step=step, path=str(final), reason=_reason(error))
            return
        self.records.write(
            "ckpt",
            event="durable",
            step=step,
            path=str(final),
            bytes=size,
            digest=digest,
            stall_ns=stall_ns,
            dur_ns=time.perf_counter_ns() - begin,
            world_size=self.world_size,
            mode=self.mode,
        )
        protected = {self._restored} if self._restored else set()
        removed = manifest.prune(
            self.root, keep_last=self.keep_last, keep_every=self.keep_every, protected=protected
        )
        for old_step, path in removed:
            self.records.write("ckpt", event="deleted", step=old_step, path=str(path))

    def settle(self) -> None:
        """Return when no save is under way any more, on this rank."""
        if self._commit is not None:
            self._commit.join()
            self._commit = None
        self._pending = None

    def load(self, state: TrainState, resume: str) -> int:
        """The step to go on from: 0 for a fresh start. Every rank loads the same checkpoint.

        ``auto`` takes the newest that verifies. A chosen one must verify: it is refused, never silently
        replaced by another.
        """
        chosen: list[Any] = [None, None]
        if self.rank == 0:
            chosen = list(self._choose(resume))
        dist.broadcast_object_list(chosen, group=self.group)
        path, refusal = chosen
        if refusal:
            raise Refused(refusal)
        if path is None:
            return 0
        begin = time.perf_counter_ns()
        content = {"train": state}
        try:
            dcp.load(content, storage_reader=dcp.FileSystemReader(path), process_group=self.group)
        except (dcp.CheckpointException, RuntimeError, KeyError, ValueError) as error:
            raise Refused(
                f"The checkpoint {path} does not belong to this model: {_reason(error)}. "
                "Use the configuration that it was made with, or resume: none."
            ) from error
        facts = manifest.facts_of(Path(path))
        step = int(facts["step"])
        self._restored, self.last_step = Path(path), step
        if self.rank == 0:
            self.records.write(
                "ckpt", event="restored", step=step, path=path, dur_ns=time.perf_counter_ns() - begin
            )
        return step

    def _choose(self, resume: str) -> tuple[str | None, str | None]:
        if resume == "none":
            return None, None
        if resume != "auto":
            fault = manifest.fault_of(Path(resume)) if Path(resume).is_dir() else "it does not exist"
            if fault:
                self.records.write("ckpt", event="corrupt", step=0, path=resume, reason=fault)
                return None, f"The checkpoint {resume} cannot be resumed from: {fault}. Choose another one."
            return resume, None
        found, bad = manifest.newest_sound(self.root)
        for folder, fault in bad:
            step = int(folder.name.removeprefix("step_"))
            self.records.write("ckpt", event="corrupt", step=step, path=str(folder), reason=fault)
        return (str(found) if found else None), None


def _reason(error: BaseException) -> str:
    """The innermost cause in a few words: what a person has to mend."""
    if isinstance(error, dcp.CheckpointException):
        causes = [part[0] if isinstance(part, tuple) else part for part in error.failures.values()]
        text = str(causes[0]) if causes else str(error)
    else:
        text = str(error)
    if "No space left" in text or "Errno 28" in text:
        return "no space left on the checkpoint's file system"
    return text.strip().splitlines()[-1][:300] if text.strip() else type(error).__name__
