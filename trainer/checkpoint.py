"""When the state is copied, who writes it, and which checkpoint a run goes on from."""

import os
import shutil
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from trainer import manifest
from trainer.config import CheckpointConfig
from trainer.records import RecordWriter
from trainer.refusal import Refused
from trainer.saver import Saver, SaverLost, layout_of, views_of
from trainer.saving import SaveOrder, SaveResult, reason_of, save_and_commit
from trainer.state import Entry


class Checkpointer:
    """Saves the state of all ranks, and loads the newest checkpoint that verifies.

    Life of a save: ``begin``; the state is copied while the next forward and backward pass run (parameters change
    only in the optimizer's step, which waits in ``staged``); then a process, a thread or nobody else writes it, and
    ``poll`` reports its end.
    """

    def __init__(
        self,
        root: Path,
        records: RecordWriter,
        config: CheckpointConfig,
        entries: Mapping[str, Entry],
        facts: Mapping[str, Any],
        saver: Saver | None,
    ) -> None:
        self.root, self.records, self.config = root, records, config
        self.entries, self.facts = dict(entries), dict(facts)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.fence = os.environ.get("TRAINYARD_FENCE", "")
        # Its own group: collectives of a background save must not meet those of training.
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=config.deadline_s))
        self.mode = config.mode
        self.saver = saver
        self.last_step = -1
        self.stalls_ns: list[int] = []
        self.failure = ""
        self.broken = False  # the background writer failed as such: all ranks go over to saving in line
        self._staging: list[Tensor] = []
        self._copying: threading.Thread | None = None
        self._writing: threading.Thread | None = None
        self._order: SaveOrder | None = None
        self._result: SaveResult | None = None
        self._began_ns = self._stall_ns = 0
        self._restored: Path | None = None
        fault = [self._root_fault() if self.rank == 0 else None]
        dist.broadcast_object_list(fault, group=self.group)
        if fault[0]:
            raise Refused(fault[0])

    def _root_fault(self) -> str | None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if self.fence:
                manifest.fence_take(self.root, self.fence)
            for left in self.root.glob("step_*.tmp"):
                shutil.rmtree(left, ignore_errors=True)
        except manifest.FenceLost as error:
            return f"Another attempt of this job writes its checkpoints now: {error}"
        except OSError as error:
            return f"The checkpoint folder {self.root} cannot be written: {error.strerror}."
        return None

    # -- saving ----------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a save is under way on this rank."""
        return self._order is not None

    def begin(self, step: int, facts: Mapping[str, Any], extra: Mapping[str, Tensor]) -> None:
        """Start a save of the state as it is now. ``extra`` are small tensors of this rank alone."""
        self.settle()
        begin = time.perf_counter_ns()
        order = SaveOrder(
            step=step,
            root=str(self.root),
            fence=self.fence,
            facts={**self.facts, **facts, "world_size": self.world_size},
            keep_last=self.config.keep_last,
            keep_every=self.config.keep_every,
            protected=[str(self._restored)] if self._restored else [],
        )
        self._order, self._began_ns, self.last_step = order, begin, step
        self.records.write("ckpt", event="begin", step=step, path=str(order.final), mode=self.mode)
        if self.mode == "sync":
            live = {**self._tensors(), **extra}
            self._result = save_and_commit(order, live, self.group)
            self._stall_ns = time.perf_counter_ns() - begin
            self.poll()
            return
        self._stage(extra)
        self._stall_ns = time.perf_counter_ns() - begin

    def _tensors(self) -> dict[str, Tensor]:
        return {name: entry.whole() for name, entry in self.entries.items()}

    def _stage(self, extra: Mapping[str, Tensor]) -> None:
        """Copy the state aside, in a thread: the copy lets go of the interpreter's lock."""
        everything = {**self.entries, **{name: Entry(t, None) for name, t in extra.items()}}
        if not self._staging:
            self._staging_make(everything)
        sources = [entry.local for entry in everything.values()]
        self._copying = threading.Thread(target=_copy_all, args=(self._staging, sources), name="checkpoint-copy")
        self._copying.start()

    def _staging_make(self, everything: dict[str, Entry]) -> None:
        layout, size = layout_of(everything)
        block: Tensor | None = None
        if self.mode == "process" and self.saver is not None:
            try:
                block = self.saver.share(layout, size, self._savers_group())
            except (SaverLost, OSError):
                self.broken = True
        if block is None:
            block = torch.empty(size, dtype=torch.uint8)
        if any(entry.local.is_cuda for entry in everything.values()):
            _pin(block)
        self._staging = views_of(block, layout)
        self._names = list(everything)

    def _savers_group(self) -> dict[str, Any]:
        return {
            "host": os.environ.get("MASTER_ADDR", "127.0.0.1"),
            "port": int(os.environ["MASTER_PORT"]),
            "prefix": f"savers/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
            "rank": self.rank,
            "world_size": self.world_size,
            "timeout_s": self.config.deadline_s,
        }

    def staged(self) -> int:
        """Wait until the copy is made, and have it written; the nanoseconds for which this stood still.

        To be called before anything changes the state.
        """
        if self._copying is None:
            return 0
        begin = time.perf_counter_ns()
        self._copying.join()
        self._copying = None
        order = self._order
        assert order is not None
        try:
            if self.mode == "process" and self.saver is not None and not self.broken:
                self.saver.order(order)
            else:
                self._writing = threading.Thread(target=self._write, args=(order,), name="checkpoint-write")
                self._writing.start()
        except SaverLost as error:
            self._lost(str(error))
        waited = time.perf_counter_ns() - begin
        self._stall_ns += waited
        self.records.write("ckpt", event="staged", step=order.step, path=str(order.final), stall_ns=self._stall_ns)
        return waited

    def _write(self, order: SaveOrder) -> None:
        tensors = {
            name: (entry.spread.around(view) if entry and entry.spread else view)
            for name, view in zip(self._names, self._staging, strict=True)
            for entry in (self.entries.get(name),)
        }
        self._result = save_and_commit(order, tensors, self.group)

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether no save is under way any more; its end is recorded when it comes."""
        order = self._order
        if order is None:
            return True
        if self._copying is not None:
            return False
        if self._writing is not None:
            self._writing.join(timeout_s)
            if self._writing.is_alive():
                return False
            self._writing = None
        elif self._result is None and self.saver is not None:
            try:
                self._result = self.saver.result(timeout_s)
            except SaverLost as error:
                self._lost(str(error))
        late = time.perf_counter_ns() - self._began_ns > self.config.deadline_s * 1e9
        if self._result is None and late:
            self._lost(f"it was not finished after {self.config.deadline_s:g} s")
        if self._result is not None:
            self._ended(order, self._result)
        return self._order is None

    def _lost(self, reason: str) -> None:
        """The saver is dead or hangs: this save is lost, and the next ones are made in line."""
        assert self._order is not None
        self.broken = True
        if self.saver is not None:
            self.saver.close()
        self._result = SaveResult(self._order.step, reason)

    def _ended(self, order: SaveOrder, result: SaveResult) -> None:
        self._order = self._result = None
        self.stalls_ns.append(self._stall_ns)
        common = {"step": order.step, "path": str(order.final)}
        self.failure = result.reason
        if result.reason:
            self.last_step = -1
            if self.rank == 0 or self.broken:
                self.records.write("ckpt", event="failed", reason=result.reason, **common)
                print(f"trainer: the checkpoint of step {order.step} was not made: {result.reason}.", flush=True)
            return
        if self.rank != 0:
            return
        self.records.write(
            "ckpt",
            event="durable",
            bytes=result.bytes,
            digest=result.digest,
            stall_ns=self._stall_ns,
            dur_ns=time.perf_counter_ns() - self._began_ns,
            world_size=self.world_size,
            mode=self.mode,
            **common,
        )
        for step, path in result.removed:
            self.records.write("ckpt", event="deleted", step=step, path=path)

    def settle(self) -> None:
        """Return when no save is under way any more, on this rank."""
        self.staged()
        while not self.poll(timeout_s=1.0):
            pass

    def go_in_line(self) -> None:
        """Save in the training process from now on; agreed by all ranks, after one of them lost its saver."""
        self.settle()
        if self.saver is not None:
            self.saver.close()
            self.saver = None
        self.mode, self.broken, self._staging = "sync", False, []

    def close(self) -> None:
        """Wait for the save under way, and let the saver go."""
        self.settle()
        if self.saver is not None:
            self.saver.close()

    # -- loading ---------------------------------------------------------------------------------------

    def load(self, resume: str) -> dict[str, Any] | None:
        """The facts of the checkpoint that the state was loaded from; None for a fresh start. Collective.

        ``auto`` takes the newest that verifies. A chosen one must verify: it is refused, never silently replaced
        by another.
        """
        path = self._choose(resume)
        if path is None:
            return None
        begin = time.perf_counter_ns()
        facts = manifest.facts_of(path)
        self._same_model(path, facts)
        content = self._tensors()
        self._read(path, content)
        self._restored, self.last_step = path, int(facts["step"])
        if self.rank == 0:
            duration = time.perf_counter_ns() - begin
            self.records.write("ckpt", event="restored", step=facts["step"], path=str(path), dur_ns=duration)
        return facts

    def load_extra(self, facts: Mapping[str, Any], extra: dict[str, Tensor]) -> bool:
        """Load small tensors of this rank alone; False when the checkpoint is of another number of ranks."""
        if facts["world_size"] != self.world_size or not extra:
            return False
        assert self._restored is not None
        self._read(self._restored, extra)
        return True

    def _read(self, path: Path, content: dict[str, Tensor]) -> None:
        try:
            dcp.load(content, storage_reader=dcp.FileSystemReader(path), process_group=self.group)
        except (dcp.CheckpointException, RuntimeError, KeyError, ValueError) as error:
            raise Refused(
                f"The checkpoint {path} does not belong to this model: {reason_of(error)}. "
                "Use the configuration that it was made with, or resume: none."
            ) from error

    def _same_model(self, path: Path, facts: Mapping[str, Any]) -> None:
        theirs, ours = facts.get("model"), self.facts.get("model")
        if theirs != ours:
            raise Refused(
                f"The checkpoint {path} is of another model: it has {_words(theirs)}, and this run {_words(ours)}. "
                "Use the configuration that it was made with, or resume: none."
            )

    def _choose(self, resume: str) -> Path | None:
        if resume == "none":
            return None
        if resume != "auto":
            path = Path(resume)
            fault = self._verify(path)
            if fault:
                if self.rank == 0:
                    self.records.write("ckpt", event="corrupt", step=0, path=resume, reason=fault)
                raise Refused(f"The checkpoint {resume} cannot be resumed from: {fault}. Choose another one.")
            return path
        found: list[Any] = [[str(p) for _, p in manifest.folders_by_step(self.root)] if self.rank == 0 else None]
        dist.broadcast_object_list(found, group=self.group)
        for path in map(Path, found[0]):
            fault = self._verify(path)
            if fault is None:
                return path
            if self.rank == 0:
                step = int(path.name.removeprefix("step_"))
                self.records.write("ckpt", event="corrupt", step=step, path=str(path), reason=fault)
                manifest.corrupt_note(path, fault)
        return None

    def _verify(self, path: Path) -> str | None:
        """What is wrong with a checkpoint; each rank reads its share of the files, and all learn the answer."""
        mine = manifest.fault_of(path, part=self.rank, parts=self.world_size) if path.is_dir() else "it does not exist"
        faults: list[Any] = [None] * self.world_size
        dist.all_gather_object(faults, mine, group=self.group)
        return next((fault for fault in faults if fault), None)


def _copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_copy_(targets, sources)
        if any(source.is_cuda for source in sources):
            torch.cuda.current_stream().synchronize()


def _pin(block: Tensor) -> None:
    """Page-lock the block: the copy from the GPU is several times as fast. Without it the copy is only slower."""
    torch.cuda.cudart().cudaHostRegister(block.data_ptr(), block.nbytes, 0)


def _words(model: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in model.items()) if isinstance(model, dict) else "no description"
