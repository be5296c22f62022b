"""Which processes the stack has, how much memory they take, and where they listen."""

import re
from pathlib import Path
from typing import Any

from flows.embedded.cleanup import STACK_VARIABLE, carrying, written_down
from flows.embedded.layout import registry_of
from flows.embedded.ports import ports_of
from flows.processes import ProcessId, read_json


def stack_memory(data: Path) -> list[dict[str, Any]]:
    """Per process of the stack: name, pid, resident and proportional memory in MB (10^6 bytes), TCP ports."""
    names = {row["pid"]: name for name, row in (read_json(registry_of(data)) or {}).items()}
    # The broker writes its title over its environment: it is found by the registry alone.
    found = {p.pid: p for p in [*written_down(data), *carrying(f"{STACK_VARIABLE}={data}"), *_supervisor(data)]}
    ports = ports_of(found)
    rows = []
    for process in found.values():
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        sizes = {key: int(value) * 1024 / 1e6 for key, value in re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.M)}
        rows.append(
            {
                "name": names.get(process.pid) or _name_of(command),
                "pid": process.pid,
                "command": command.strip()[:120],
                "rss_mb": round(sizes.get("Rss", 0.0), 1),
                "pss_mb": round(sizes.get("Pss", 0.0), 1),
                "ports": ports.get(process.pid, []),
            }
        )
    return sorted(rows, key=lambda r: -float(r["rss_mb"]))


def _supervisor(data: Path) -> list[ProcessId]:
    """The supervisor itself, out of its lock: it does not carry the mark of what it starts."""
    try:
        pid = int((data / "run" / "supervisor.lock").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return []
    process = ProcessId.of(pid)
    return [process] if process is not None and b"flows.embedded" in command else []


def _name_of(command: str) -> str:
    for part, name in (("flows.embedded", "supervisor"), ("prefect.engine", "flow")):
        if part in command:
            return name
    return "child"
