"""Whose turn it is inside a queue: higher priority, then the part that used least lately, then age."""

import heapq
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from scheduler.requests import Request
from scheduler.snapshot import Policy, Subqueue

# Use per weight; infinite once a part without weight has used anything.
_Turn = tuple[bool, Fraction]


def decayed_usage(spent: Iterable[tuple[float, float]], now_s: float, half_life_s: float) -> float:
    """GPU-seconds that still count: of (ended_s, gpu_seconds) pairs each loses half per half-life.

    A half-life of 0 or less means that nothing is forgotten.
    """
    if half_life_s <= 0:
        return sum(gpu_s for _, gpu_s in spent)
    return sum(gpu_s * math.pow(0.5, max(0.0, now_s - ended_s) / half_life_s) for ended_s, gpu_s in spent)


def usage_order(requests: Sequence[Request], subqueues: Sequence[Subqueue], policy: Policy) -> list[Request]:
    """One queue's requests, given in order of priority and age, with fair turns inside each priority.

    Each request that is put in line charges its part the entry penalty at once: otherwise a part with
    little use could fill the queue before its use is measured.
    """
    parts = {s.name: s for s in subqueues}
    charged = {name: Fraction(s.decayed_usage) for name, s in parts.items()}
    out: list[Request] = []
    start = 0
    while start < len(requests):
        end = start
        while end < len(requests) and requests[end].order[:2] == requests[start].order[:2]:
            end += 1
        out.extend(_one_priority(requests[start:end], parts, charged, Fraction(policy.entry_penalty_s)))
        start = end
    return out


def _one_priority(
    requests: Sequence[Request], parts: dict[str, Subqueue], charged: dict[str, Fraction], penalty_s: Fraction
) -> list[Request]:
    lines: dict[str, list[Request]] = {}
    for request in requests:
        lines.setdefault(_part(request, parts), []).append(request)
    heap = [(_turn(name, parts, charged), line[0].order, name, 0) for name, line in lines.items()]
    heapq.heapify(heap)
    out: list[Request] = []
    while heap:
        _, _, name, at = heap[0]
        request = lines[name][at]
        out.append(request)
        if name in charged:
            charged[name] += penalty_s * request.kind.size
        if at + 1 < len(lines[name]):
            after = lines[name][at + 1]
            heapq.heapreplace(heap, (_turn(name, parts, charged), after.order, name, at + 1))
        else:
            heapq.heappop(heap)
    return out


def _part(request: Request, parts: dict[str, Subqueue]) -> str:
    name = request.job.subqueue or request.job.user
    return name if name in parts else ""


def _turn(name: str, parts: dict[str, Subqueue], charged: dict[str, Fraction]) -> _Turn:
    """A job of no known part has used nothing."""
    if name not in parts:
        return (False, Fraction(0))
    weight = Fraction(parts[name].weight)
    if weight <= 0:
        return (charged[name] > 0, charged[name])
    return (False, charged[name] / weight)
