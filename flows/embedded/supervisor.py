"""One supervisor: starts the stack in order, starts again what dies, and ends everything at once."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.embedded.cleanup import clear
from flows.embedded.layout import ROOT, CannotStart, registry_of
from flows.embedded.unit import Unit, check_units
from flows.processes import ProcessId, die_with_parent, kill_group, write_whole

READY_TIMEOUT_S = 150.0
LOOK_EVERY_S = 0.1
LONGEST_BACK_OFF_S = 5.0
STEADY_S = 10.0
MAX_LOG_BYTES = 16 * 1024 * 1024
AGENTS_GRACE_S = 1.0
Say = Callable[[str], None]


class Interrupted(Exception):
    """Told to stop before it was done."""


@dataclass
class Running:
    """A unit and its present process; ``back_at``: when a process that died is started again."""

    unit: Unit
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    failures: int = 0
    back_at: float = 0.0


class Supervisor:
    """The units of one claimed data folder. For the main thread only: children die with the thread that starts them."""

    def __init__(self, data: Path, units: Sequence[Unit], *, say: Say) -> None:
        check_units(units)
        self.data, self.units, self.say = data, list(units), say
        self.logs = data / "logs"
        self.running: dict[str, Running] = {}
        self.stopping = threading.Event()
        self._logs_looked_at = time.monotonic()

    # -- start -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every unit as soon as what it comes after is there; return when all are. Else ``CannotStart``."""
        self.logs.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + READY_TIMEOUT_S
        there: set[str] = set()
        while len(there) < len(self.units):
            for unit in self.units:
                if unit.name not in self.running and there.issuperset(unit.after):
                    self._start(unit)
            arrived = {name for name, entry in self.running.items() if name not in there and self._arrived(entry)}
            there |= arrived
            if self.stopping.is_set():
                raise Interrupted
            if not arrived:
                if time.monotonic() > deadline:
                    late = [name for name in self.running if name not in there]
                    raise CannotStart(
                        f"{', '.join(late)} did not become ready in {READY_TIMEOUT_S:.0f} s (see {self.logs})"
                    )
                self.stopping.wait(0.05)
        for unit in self.units:
            if unit.once:
                del self.running[unit.name]

    def _arrived(self, entry: Running) -> bool:
        """Whether a started unit is there: it serves, or has ended well."""
        unit = entry.unit
        code = entry.process.poll() if entry.process else None
        if unit.once:
            if code is None:
                return False
            if code != 0:
                raise CannotStart(f"{unit.name} failed: {self._last_line(unit)} (see {self._log(unit)})")
            if unit.done is not None:
                unit.done()
            return True
        if code is not None:
            raise CannotStart(f"{unit.name} ended while it started: {self._last_line(unit)} (see {self._log(unit)})")
        return unit.ready is None or unit.ready()

    def _log(self, unit: Unit) -> Path:
        return self.logs / f"{unit.name}.log"

    def _last_line(self, unit: Unit) -> str:
        with self._log(unit).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else "no message"

    def _start(self, unit: Unit) -> None:
        entry = self.running.setdefault(unit.name, Running(unit))
        with self._log(unit).open("ab") as log:
            entry.process = subprocess.Popen(
                list(unit.argv),
                cwd=ROOT,
                env=dict(unit.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=die_with_parent(os.getpid()),  # noqa: PLW1509 - the main thread starts all children
            )
        entry.started = time.monotonic()
        self._write_registry()

    def _write_registry(self) -> None:
        rows = {}
        for name, entry in self.running.items():
            process = ProcessId.of(entry.process.pid) if entry.process else None
            if process is not None:
                rows[name] = process.as_json()
        write_whole(registry_of(self.data), json.dumps(rows).encode())

    # -- life ------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Look once at every process, and start again what has died; for ever, with a growing pause."""
        now = time.monotonic()
        for name, entry in self.running.items():
            if entry.process is None:
                if now >= entry.back_at:
                    self._start(entry.unit)
                continue
            code = entry.process.poll()
            if code is None:
                continue
            # Whatever it has started goes with it, so that its successor finds a clean place.
            kill_group(entry.process.pid)
            entry.failures = 1 if now - entry.started > STEADY_S else entry.failures + 1
            back_off = min(LONGEST_BACK_OFF_S, 0.1 * 2.0 ** (entry.failures - 1))
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            self.say(f"{name} (pid {entry.process.pid}) ended with {how}; starting it again in {back_off:.1f} s")
            entry.process, entry.back_at = None, now + back_off
            self._write_registry()
        if now - self._logs_looked_at > STEADY_S:
            self._logs_looked_at = now
            for name in self.running:
                log_trim(self.logs / f"{name}.log")

    def watch(self, until: Callable[[], bool] = lambda: False) -> None:
        """Look after the processes until told to stop, or until the condition comes true."""
        while not until() and not self.stopping.wait(LOOK_EVERY_S):
            self.turn()

    # -- end -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End everything, at once. First who starts others, then node agents with their ranks, then who serves them."""
        self.stopping.set()
        rounds = sorted({entry.unit.leaves for entry in self.running.values()})
        for number in rounds:
            self._stop_round([entry for entry in self.running.values() if entry.unit.leaves == number])
            if number == rounds[0]:
                clear(self.data, grace_s=AGENTS_GRACE_S, but=self._pids())
        clear(self.data, grace_s=0.0)
        registry_of(self.data).unlink(missing_ok=True)

    def _pids(self) -> list[int]:
        return [e.process.pid for e in self.running.values() if e.process is not None and e.process.returncode is None]

    def _stop_round(self, entries: list[Running]) -> None:
        now = time.monotonic()
        alive = [(e, e.process) for e in entries if e.process is not None and e.process.poll() is None]
        for entry, process in alive:
            process.send_signal(signal.SIGTERM if entry.unit.grace_s > 0 else signal.SIGKILL)
        for entry, process in alive:
            try:
                process.wait(max(0.0, now + entry.unit.grace_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            kill_group(process.pid)
            process.wait()


def log_trim(path: Path, most: int = MAX_LOG_BYTES) -> None:
    """Move a log that has grown too big aside, under its writer's feet: it appends, so it goes on at the new start."""
    try:
        if path.stat().st_size <= most:
            return
        with path.open("rb") as log:
            log.seek(-most // 2, os.SEEK_END)
            write_whole(path.with_suffix(".log.1"), log.read())
        os.truncate(path, 0)
    except FileNotFoundError:
        return


def stop_on_signals(supervisor: Supervisor) -> None:
    """SIGINT, SIGTERM and SIGHUP ask for the end; a second one is not needed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: supervisor.stopping.set())
