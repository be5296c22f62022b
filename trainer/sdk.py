"""A user's own script as a job: five lines, any framework or none. Free of torch, and works outside the platform too.

    run = trainer.sdk.init()
    start = run.resume(load)                       # load(folder) -> None; the step to go on from
    for step in range(start + 1, steps + 1):
        ...
        run.report(step, loss=loss)
        if run.should_save(step, every=100):
            run.checkpoint(step, save)             # save(folder) -> None
        if run.should_stop():
            break

A stop asked for by the platform ends the process with status 90 once the script is through.
"""

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from trainer import manifest
from trainer.control import Control
from trainer.records import FAILED, REFUSED, STOPPED, RecordWriter, write_start, writer_from_environment

Files = Callable[[Path], object]
GATHER_S = 600.0


def init(checkpoint_dir: str | os.PathLike[str] | None = None) -> "Run":
    """The run of this process. ``checkpoint_dir`` counts only outside the platform, which names its own."""
    folder = os.environ.get("TRAINYARD_CHECKPOINT_DIR") or checkpoint_dir or "checkpoints"
    return Run(Path(folder), writer_from_environment())


class Run:
    """What a script tells the platform, and hears from it."""

    def __init__(self, folder: Path, records: RecordWriter) -> None:
        self.folder, self.records = folder, records
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.step = 0
        self._fence = os.environ.get("TRAINYARD_FENCE", "")
        self._control = Control(os.environ.get("TRAINYARD_CONTROL"))
        self._saves_done = self._save_wanted = 0
        self._heard: tuple[bool, bool] | None = None
        self._stopped = False
        self._error: dict[str, str] | None = None
        write_start(records)
        self._control.listen()
        self._hook = sys.excepthook
        sys.excepthook = self._on_error
        atexit.register(self._at_exit)
        records.phase("train", "begin")
        self._last_ns = time.perf_counter_ns()

    # -- telling ---------------------------------------------------------------------------------------

    def report(self, step: int, **metrics: float) -> None:
        """Step ``step`` is done. ``loss``, ``lr``, ``grad_norm`` and ``tokens`` (of this rank) have their own plots;
        ``data_wait_s`` is the part of the step spent waiting for data; any other number gets a plot of its name."""
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        now = time.perf_counter_ns()
        duration, self._last_ns, self.step, self._heard = now - self._last_ns, now, step, None
        waited = min(duration, int(numbers.pop("data_wait_s", 0.0) * 1e9))
        known: dict[str, Any] = {n: numbers.pop(n) for n in ("loss", "lr", "grad_norm") if n in numbers}
        known["tokens"] = int(numbers.pop("tokens", 0))
        segments = {"data_wait": waited, "other": duration - waited}
        self.records.write("step", step=step, dur_ns=duration, seg=segments, **known)
        if numbers:
            self.records.write("metric", step=step, values=numbers)

    # -- hearing ---------------------------------------------------------------------------------------

    def should_save(self, step: int, *, every: int = 0) -> bool:
        """Whether a checkpoint is due: at every ``every``-th step, when asked for one, and before a stop."""
        stop, save = self._hear()
        return stop or save or bool(every and step % every == 0)

    def should_stop(self) -> bool:
        """Whether to leave the loop: the platform asked for a stop. Call it on every rank, once a step, last.

        With ``torch.distributed`` in use all ranks get the same answer at the same call.
        """
        self._stopped, _ = self._hear()
        self._heard = None
        return self._stopped

    def _hear(self) -> tuple[bool, bool]:
        """Stop and save, listened for once a step: whoever stops after ``should_save`` has saved first."""
        if self._heard is None:
            wishes = self._control.look()
            self._heard = _any_rank(wishes.stop, wishes.save_id > self._saves_done)
            self._save_wanted = wishes.save_id
        return self._heard

    # -- checkpoints -----------------------------------------------------------------------------------

    def checkpoint(self, step: int, save: Files, *, every_rank: bool = False) -> bool:
        """Have ``save(folder)`` write its files, and make them a verified checkpoint; whether that worked.

        ``save`` is called on rank 0 only. With ``every_rank`` each rank calls it on the same folder (each writing
        files of its own names), and rank 0 commits when all have. A failed save leaves the older ones as they were.
        """
        self._saves_done = self._save_wanted
        if self.rank != 0 and not every_rank:
            return True
        final = manifest.step_folder(self.folder, step)
        tmp = final.with_name(final.name + ".tmp")
        begin = time.perf_counter_ns()
        self.records.phase("save", "begin")
        self.records.write("ckpt", event="begin", step=step, path=str(final), mode="sync")
        try:
            tmp.mkdir(parents=True, exist_ok=True)
            save(tmp)
            if every_rank:
                self._gather(tmp, step)
            if self.rank == 0:
                self._commit(tmp, final, step, begin)
        except (OSError, manifest.FenceLost, TimeoutError) as error:
            if self.rank == 0:
                manifest.discard(tmp)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.records.write("ckpt", event="failed", step=step, path=str(final), reason=reason)
            print(f"trainer.sdk: the checkpoint of step {step} was not made: {reason}.", file=sys.stderr, flush=True)
            return False
        finally:
            self.records.phase("save", "end")
            self._last_ns = time.perf_counter_ns()
        return True

    def resume(self, load: Files) -> int:
        """The step to go on from, after ``load(folder)`` of the newest checkpoint that verifies; 0 without one."""
        self.records.phase("restore", "begin")
        found = self._chosen()
        if found is not None:
            begin = time.perf_counter_ns()
            load(found)
            self.step = int(manifest.facts_of(found)["step"])
            duration = time.perf_counter_ns() - begin
            self.records.write("ckpt", event="restored", step=self.step, path=str(found), dur_ns=duration)
        self.records.phase("restore", "end")
        self._last_ns = time.perf_counter_ns()
        return self.step

    def _chosen(self) -> Path | None:
        wish = os.environ.get("TRAINYARD_RESUME") or "auto"
        if wish == "none":
            return None
        if wish != "auto":
            fault = manifest.fault_of(Path(wish)) if Path(wish).is_dir() else "it does not exist"
            if fault:
                self._refuse(f"The checkpoint {wish} cannot be resumed from: {fault}. Choose another one.")
            return Path(wish)
        found, bad = manifest.newest_sound(self.folder)
        if self.rank == 0:
            for folder, fault in bad:
                step = int(folder.name.removeprefix("step_"))
                self.records.write("ckpt", event="corrupt", step=step, path=str(folder), reason=fault)
                manifest.corrupt_note(folder, fault)
        return found

    def _commit(self, tmp: Path, final: Path, step: int, begin_ns: int) -> None:
        if self._fence:
            manifest.fence_take(self.folder, self._fence)
        facts = {"step": step, "world_size": self.world_size, "fence": self._fence, "by": "sdk"}
        digest, size = manifest.commit(tmp, final, facts)
        duration = time.perf_counter_ns() - begin_ns
        self.records.write(
            "ckpt",
            event="durable",
            step=step,
            path=str(final),
            bytes=size,
            digest=digest,
            stall_ns=duration,
            dur_ns=duration,
            world_size=self.world_size,
            mode="sync",
        )

    def _gather(self, tmp: Path, step: int) -> None:
        """Rank 0 waits until every rank has written; the others until rank 0 has committed."""
        marks = tmp.with_name(tmp.name + ".ranks")
        marks.mkdir(exist_ok=True)
        (marks / str(self.rank)).touch()
        deadline = time.monotonic() + GATHER_S
        while self.rank == 0 and len(list(marks.iterdir())) < self.world_size:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not every rank has written its part after {GATHER_S:.0f} s")
            time.sleep(0.01)
        if self.rank == 0:
            manifest.discard(marks)

    # -- the end ---------------------------------------------------------------------------------------

    def _refuse(self, sentence: str) -> NoReturn:
        print(f"trainer.sdk: {sentence}", file=sys.stderr, flush=True)
        error = {"type": "Refused", "message": sentence, "where": "resume"}
        self.records.write("exit", status="error", step=0, code=REFUSED, error=error)
        raise SystemExit(REFUSED)

    def _on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        frames = traceback.extract_tb(trace)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        self._error = {"type": kind.__name__, "message": str(error)[:2000], "where": where}
        self._hook(kind, error, trace)

    def _at_exit(self) -> None:
        """An error and a stop are written down. A plain end is told by the exit status, which we cannot see here."""
        if self._error is not None:
            self.records.write("exit", status="error", step=self.step, code=FAILED, error=self._error)
        elif self._stopped:
            self.records.write("exit", status="stopped", step=self.step, code=STOPPED, error=None)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(STOPPED)


def _number(name: str, value: Any) -> float:
    # Tensors and arrays of one element know how to become a float.
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"report() takes numbers, and {name} is {type(value).__name__}.") from None


def _any_rank(stop: bool, save: bool) -> tuple[bool, bool]:
    """Whether any rank says so, where ranks can talk through torch; else this one's own word."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return stop, save
    torch = sys.modules["torch"]
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    words = torch.tensor([int(stop), int(save)], device=device)
    dist.all_reduce(words, op=dist.ReduceOp.MAX)
    return bool(words[0].item()), bool(words[1].item())
