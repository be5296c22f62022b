"""One supervisor: starts the stack in order, starts again what dies, and ends everything at once."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import prefect

from flows.embedded import children as stack
from flows.embedded.children import Child
from flows.embedded.cleanup import agents, end_all, leftovers
from flows.embedded.layout import ROOT, CannotStart, Layout
from flows.prefect_env import migrate_argv
from flows.processes import ProcessId, die_with_parent, kill_group, write_whole

READY_TIMEOUT_S = 90.0
STOP_GRACE_S = 3.0
LONGEST_BACK_OFF_S = 5.0
STEADY_S = 10.0
MAX_LOG_BYTES = 32 * 1024 * 1024
Say = Callable[[str], None]


@dataclass
class Running:
    """A child and its present process."""

    child: Child
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    failures: int = 0
    restart_at: float = 0.0


class Supervisor:
    """The embedded stack of one data folder. Used by its own thread only: children die with that thread."""

    def __init__(self, layout: Layout, *, say: Say, inventory: Path | None = None) -> None:
        self.layout, self.say, self.inventory = layout, say, inventory
        self.running: dict[str, Running] = {}
        self.stopping = threading.Event()
        self._lock: int | None = None

    # -- start -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Everything up and ready, or ``CannotStart``."""
        layout = self.layout
        layout.make_folders()
        self._take_lock()
        old = leftovers(layout.data, layout.registry)
        if old:
            self.say(f"clearing away {end_all(old, grace_s=2.0)} processes that a killed supervisor left")
        layout.socket_path.unlink(missing_ok=True)
        self._start_child(stack.broker(layout))
        with ThreadPoolExecutor(2) as pool:
            portal = pool.submit(self._prepare_portal)
            prefect_ = pool.submit(self._prepare_prefect)
            prefect_.result()
            self._start_child(stack.prefect_server(layout))
            portal.result()
        for child in (stack.web(layout), stack.scheduler(layout), stack.chores(layout)):
            self._start_child(child)
        self.wait_ready()
        self._run_once("deploy", (sys.executable, "-m", "flows.deploy"), stack.flow_environment(layout))
        self._start_child(stack.prefect_worker(layout))
        self._write_registry()

    def _take_lock(self) -> None:
        """At most one supervisor per data folder; the lock goes with the process, however that ends."""
        self._lock = os.open(self.layout.data / "run" / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(f"A supervisor runs on {self.layout.data} already. Stop it, or use another folder.") from None

    def _prepare_portal(self) -> None:
        environment = stack.portal_environment(self.layout)
        self._run_once("migrate", stack.manage("migrate", "--verbosity", "0"), environment)
        token = stack.manage("flow_token", "--file", str(self.layout.flow_token))
        self._run_once("flow token", token, environment)
        if self.inventory is not None:
            self._run_once("inventory", stack.manage("inventory_sync", str(self.inventory)), environment)

    def _prepare_prefect(self) -> None:
        """Prefect's empty database is made once per version and copied after that: making it takes a while."""
        layout = self.layout
        database = layout.prefect_home / "prefect.sqlite3"
        if database.exists():
            self._run_once("prefect migrate", migrate_argv(), stack.flow_environment(layout))
            return
        template = layout.data.parent / "cache" / f"prefect-{prefect.__version__}.sqlite3"
        if not template.exists():
            self.say("making Prefect's database (once per version)")
            self._run_once("prefect migrate", migrate_argv(), stack.flow_environment(layout))
            template.parent.mkdir(parents=True, exist_ok=True)
            _copy_database(database, template)
            return
        shutil.copyfile(template, database)

    def _run_once(self, name: str, argv: Sequence[str], environment: dict[str, str]) -> None:
        done = subprocess.run(
            list(argv), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        (self.layout.logs / "once.log").open("a").write(f"$ {name}\n{done.stdout}{done.stderr}")
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise CannotStart(f"{name} failed: {lines[-1] if lines else 'no message'} (see {self.layout.logs}/once.log)")

    def _start_child(self, child: Child) -> None:
        entry = self.running.setdefault(child.name, Running(child))
        path = self.layout.logs / f"{child.name}.log"
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        with path.open("ab") as log:
            entry.process = subprocess.Popen(
                list(child.argv),
                cwd=ROOT,
                env=dict(child.environment),
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
        write_whole(self.layout.registry, json.dumps(rows).encode())

    def wait_ready(self) -> None:
        """Every child that can say so serves."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        waiting = {name: entry for name, entry in self.running.items() if entry.child.ready is not None}
        while waiting:
            for name, entry in list(waiting.items()):
                if entry.process is not None and entry.process.poll() is not None:
                    raise CannotStart(f"{name} ended while it started (see {self.layout.logs}/{name}.log)")
                if entry.child.ready is not None and entry.child.ready():
                    del waiting[name]
            if waiting and time.monotonic() > deadline:
                raise CannotStart(f"{', '.join(waiting)} did not become ready (see {self.layout.logs})")
            if waiting and self.stopping.wait(0.1):
                raise CannotStart("stopped while starting")

    # -- life ------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Look once at every child, and start again what has died."""
        now = time.monotonic()
        for name, entry in self.running.items():
            if entry.process is None:
                if now >= entry.restart_at:
                    self._start_child(entry.child)
                continue
            code = entry.process.poll()
            if code is None:
                continue
            # Whatever it has started goes with it, so that its successor finds a clean place.
            kill_group(entry.process.pid)
            entry.failures = 1 if now - entry.started > STEADY_S else entry.failures + 1
            back_off = min(LONGEST_BACK_OFF_S, 0.1 * 2 ** (entry.failures - 1))
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            self.say(f"{name} ended ({how}); starting it again in {back_off:.1f} s")
            entry.process, entry.restart_at = None, now + back_off

    def watch(self) -> None:
        """Until told to stop."""
        while not self.stopping.wait(0.1):
            self.turn()

    # -- end -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End everything, at once: agents with their ranks, then the stack. Nothing is left."""
        self.stopping.set()
        end_all(agents(self.layout.data), grace_s=2.0)
        processes = [e.process for e in self.running.values() if e.process is not None and e.process.poll() is None]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            kill_group(process.pid)
            process.wait()
        rest = leftovers(self.layout.data, self.layout.registry)
        if rest:
            end_all(rest, grace_s=0.5)
        self.layout.registry.unlink(missing_ok=True)


def _copy_database(source: Path, target: Path) -> None:
    """A whole copy of an SQLite database, whatever journal it has."""
    import sqlite3

    new = target.with_suffix(".new")
    new.unlink(missing_ok=True)
    old, copy = sqlite3.connect(source), sqlite3.connect(new)
    with copy:
        old.backup(copy)
    copy.close()
    old.close()
    new.replace(target)


def stop_on_signals(supervisor: Supervisor) -> None:
    """SIGINT and SIGTERM ask for the end; a second one is not needed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: supervisor.stopping.set())
