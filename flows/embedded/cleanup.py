"""Whose data folder it is, and clearing away what a killed supervisor has left on it."""

import fcntl
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flows.embedded.layout import CannotStart, registry_of
from flows.processes import ATTEMPT_VARIABLE, ProcessId, all_processes, kill_process, read_json, wait_until

STACK_VARIABLE = "TRAINYARD_STACK"


def claim(data: Path) -> int:
    """A descriptor that holds the data folder until this process ends; ``CannotStart`` when another one has it."""
    (data / "run").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(data / "run" / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "?"
        os.close(descriptor)
        raise CannotStart(
            f"A supervisor (pid {holder}) runs on {data} already. Stop it with Ctrl-C or `kill {holder}`, "
            "or use another folder."
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def leftovers(data: Path, but: Iterable[int] = ()) -> list[ProcessId]:
    """Processes of this data folder that run: the stack's, its flows, its node agents and their ranks.

    Found by the registry, by the agents' own files, and by the marks that they all carry in their environment.
    """
    agents = [read_json(path) for path in (data / "jobs").glob("*/attempts/*/nodes/*/agent.json")]
    found = {process.pid: process for process in [*written_down(data), *_alive(agents)]}
    marks = {f"{STACK_VARIABLE}={data}".encode()}
    marks |= {f"{ATTEMPT_VARIABLE}={path.name}".encode() for path in (data / "jobs").glob("*/attempts/*")}
    for row in all_processes():
        if not marks.isdisjoint(row.environment()):
            found[row.identity.pid] = row.identity
    for pid in (os.getpid(), *but):
        found.pop(pid, None)
    return list(found.values())


def written_down(data: Path) -> list[ProcessId]:
    """The supervisor's children that its registry names and that live."""
    return _alive((read_json(registry_of(data)) or {}).values())


def _alive(rows: Iterable[Any]) -> list[ProcessId]:
    found = []
    for row in rows:
        try:
            process = ProcessId(int(row["pid"]), int(row["start_ticks"]), str(row["boot_id"]))
        except (KeyError, TypeError, ValueError):
            continue  # a torn or foreign file names nobody
        if process.alive():
            found.append(process)
    return found


def carrying(entry: str) -> list[ProcessId]:
    """Processes that have this entry in their environment."""
    mark = entry.encode()
    return [row.identity for row in all_processes() if mark in row.environment()]


def end_all(processes: list[ProcessId], *, grace_s: float) -> int:
    """Ask them to go, then make them; the number of processes that were there."""
    if grace_s > 0:
        for process in processes:
            kill_process(process, signal.SIGTERM)
    if grace_s <= 0 or not wait_until(lambda: not any(p.alive() for p in processes), timeout_s=grace_s):
        for process in processes:
            kill_process(process)
        wait_until(lambda: not any(p.alive() for p in processes), timeout_s=5.0)
    return len(processes)


def clear(data: Path, *, grace_s: float, but: Iterable[int] = ()) -> int:
    """End all leftovers; what appeared meanwhile too. The number of processes that were there."""
    but = list(but)
    count = 0
    for _ in range(5):
        left = leftovers(data, but)
        if not left:
            break
        count += end_all(left, grace_s=grace_s)
        grace_s = 0.0
    return count
