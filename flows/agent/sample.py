"""What the node itself looks like: processor, memory, disk, from /proc."""

import os
from pathlib import Path
from typing import Any


class NodeSampler:
    """Reads the node's counters; rates are since the read before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before: tuple[int, int] | None = None

    def read(self) -> dict[str, Any]:
        """Processor use 0 to 1, memory and disk in bytes; what cannot be read is left out."""
        sample: dict[str, Any] = {}
        try:
            numbers = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
            busy, whole = sum(numbers) - numbers[3] - numbers[4], sum(numbers)
            if self._before and whole > self._before[1]:
                sample["cpu_ratio"] = round((busy - self._before[0]) / (whole - self._before[1]), 4)
            self._before = (busy, whole)
            memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
            total, free = (int(memory[k].split()[0]) * 1024 for k in ("MemTotal", "MemAvailable"))
            sample |= {"memory_total_bytes": total, "memory_used_bytes": total - free}
            disk = os.statvfs(self.folder)
            sample["disk_free_bytes"] = disk.f_bavail * disk.f_frsize
            sample["load_1m"] = os.getloadavg()[0]
        except (OSError, ValueError, KeyError, IndexError):
            pass
        return sample
