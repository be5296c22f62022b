"""Clearing away what a supervisor that was killed has left: its processes, their flows, agents and ranks."""

import os
import signal
from pathlib import Path

from flows.processes import ProcessId, kill_process, read_json, wait_until


def leftovers(data: Path, registry: Path) -> list[ProcessId]:
    """Processes of an earlier life of this data folder that still run."""
    found: dict[int, ProcessId] = {}
    for row in (read_json(registry) or {}).values():
        if isinstance(row, dict):
            process = ProcessId(int(row["pid"]), int(row["start_ticks"]), str(row["boot_id"]))
            if process.alive():
                found[process.pid] = process
    for path in (data / "jobs").glob("*/attempts/*/nodes/*/agent.json"):
        row = read_json(path)
        if row is not None:
            process = ProcessId(int(row["pid"]), int(row["start_ticks"]), str(row["boot_id"]))
            if process.alive():
                found[process.pid] = process
    for process in carrying(f"TRAINYARD_STACK={data}"):
        found.setdefault(process.pid, process)
    found.pop(os.getpid(), None)
    return list(found.values())


def carrying(entry: str) -> list[ProcessId]:
    """Processes that have this entry in their environment."""
    mark, found = entry.encode(), []
    for item in os.scandir("/proc"):
        if not item.name.isdigit():
            continue
        try:
            environment = Path(f"/proc/{item.name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        process = ProcessId.of(int(item.name)) if mark in environment else None
        if process is not None:
            found.append(process)
    return found


def agents(data: Path) -> list[ProcessId]:
    """Node agents of this data folder that run now."""
    found = []
    for path in (data / "jobs").glob("*/attempts/*/nodes/*/agent.json"):
        row = read_json(path)
        if row is not None:
            process = ProcessId(int(row["pid"]), int(row["start_ticks"]), str(row["boot_id"]))
            if process.alive():
                found.append(process)
    return found


def end_all(processes: list[ProcessId], *, grace_s: float) -> int:
    """Ask them to go, then make them; the number of processes that were there."""
    for process in processes:
        kill_process(process, signal.SIGTERM)
    if not wait_until(lambda: not any(p.alive() for p in processes), timeout_s=grace_s):
        for process in processes:
            kill_process(process)
        wait_until(lambda: not any(p.alive() for p in processes), timeout_s=5.0)
    return len(processes)
