"""How much memory the stack's processes take."""

import re
from pathlib import Path
from typing import Any

from flows.embedded.cleanup import carrying
from flows.processes import read_json


def stack_memory(data: Path) -> list[dict[str, Any]]:
    """Per process of the stack: name, pid, resident and proportional memory in MB (10^6 bytes)."""
    names = {row["pid"]: name for name, row in (read_json(data / "run" / "processes.json") or {}).items()}
    rows = []
    for process in carrying(f"TRAINYARD_STACK={data}"):
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
        except OSError:
            continue
        sizes = {key: int(value) * 1024 / 1e6 for key, value in re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.M)}
        rows.append(
            {
                "name": names.get(process.pid, "child"),
                "pid": process.pid,
                "command": command,
                "rss_mb": sizes.get("Rss", 0.0),
                "pss_mb": sizes.get("Pss", 0.0),
            }
        )
    return sorted(rows, key=lambda r: -float(r["rss_mb"]))
