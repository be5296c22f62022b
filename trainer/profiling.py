"""A torch profiler window on demand, boiled down to a page of numbers where it was measured."""

from collections import defaultdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

COMMUNICATION = ("gloo:", "nccl:", "ncclDevKernel", "c10d::")


class Window:
    """Profiles the next few steps of this rank, then gives a summary; the trace itself is dropped."""

    def __init__(self, steps: int, device: torch.device) -> None:
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
        self._left, self._steps = steps, steps
        self._profile = profile(activities=activities, record_shapes=False)
        self._profile.start()

    def step(self) -> dict[str, Any] | None:
        """One step is done; the summary after the last one."""
        self._left -= 1
        if self._left:
            return None
        self._profile.stop()
        return summary_of(self._profile, self._steps)


def summary_of(window: profile, steps: int, top: int = 12) -> dict[str, Any]:
    """Top operations by their own time, collectives, and how much of those ran beside compute. Milliseconds a step."""
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    communication: list[tuple[float, float]] = []
    compute: list[tuple[float, float]] = []
    for event in window.events() or []:
        span = (event.time_range.start, event.time_range.end)
        if event.name.startswith(COMMUNICATION[:3]):
            communication.append(span)
        elif event.name.startswith("aten::") and event.cpu_parent is None:
            compute.append(span)
        cuda = getattr(event, "self_device_time_total", 0)
        own = float(cuda or event.self_cpu_time_total)
        rows[event.name][0] += own
        rows[event.name][1] += 1
    scale = 1e-3 / steps
    busy, hidden = _overlap(communication, compute)
    ranked = sorted(rows.items(), key=lambda item: -item[1][0])[:top]
    return {
        "steps": steps,
        "top": [{"name": n[:80], "self_ms": t * scale, "calls": c / steps} for n, (t, c) in ranked],
        "communication_ms": busy * scale,
        "overlapped_ms": hidden * scale,
        "overlap_ratio": hidden / busy if busy else None,
    }


def _overlap(communication: list[tuple[float, float]], compute: list[tuple[float, float]]) -> tuple[float, float]:
    """The time in which anything was communicated, and the part of it in which something was computed too."""
    merged, work = _merged(communication), _merged(compute)
    total = sum(end - begin for begin, end in merged)
    hidden, place = 0.0, 0
    for begin, end in merged:
        while place < len(work) and work[place][1] <= begin:
            place += 1
        index = place
        while index < len(work) and work[index][0] < end:
            hidden += min(end, work[index][1]) - max(begin, work[index][0])
            index += 1
    return total, hidden


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


__all__ = ["Window", "summary_of"]
