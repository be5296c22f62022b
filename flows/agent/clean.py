"""Records come from a job's own program: what is sent on is checked first, and never more than fits. Pure."""

import json
import math
from collections.abc import Mapping
from typing import Any

MAX_RECORD_BYTES = 16 * 1024
MAX_COUNT = 2**53
MAX_INSTANT_NS = 2**63 - 1
# A rank's clock is the node's: an instant later than this is an error, not a clock.
FUTURE_NS = 1_000_000_000
COUNTS = ("step", "stall_ns", "dur_ns", "bytes", "world_size", "tokens")
SMALL = ("k", "t_ns", *COUNTS, "name", "event", "path", "digest", "status", "code", "mode")


def record_clean(record: Mapping[str, Any], now_ns: int) -> dict[str, Any] | None:
    """The record with an instant that can be, counts that are counts and no NaN; None when it is none."""
    kind, at = record.get("k"), record.get("t_ns")
    if not isinstance(kind, str) or not 0 < len(kind) <= 20 or not is_count(at, MAX_INSTANT_NS):
        return None
    clean = {str(key): _plain(value) for key, value in record.items()}
    clean["t_ns"] = min(int(record["t_ns"]), now_ns + FUTURE_NS)
    for name in COUNTS:
        if name in clean and not is_count(clean[name]):
            clean[name] = None
    if kind == "step" and (clean.get("step") is None or clean.get("dur_ns") is None):
        return None
    if "seg" in clean:
        segments = clean["seg"] if isinstance(clean["seg"], dict) else {}
        clean["seg"] = {str(k): v for k, v in segments.items() if is_count(v)}
    return clean


def record_fit(record: dict[str, Any]) -> dict[str, Any]:
    """The record, or its small fields when it is too long to be sent."""
    if len(json.dumps(record)) <= MAX_RECORD_BYTES:
        return record
    small = {k: record[k] for k in SMALL if k in record}
    return {k: v[:500] if isinstance(v, str) else v for k, v in small.items()} | {"cut": True}


def is_count(value: Any, most: int = MAX_COUNT) -> bool:
    """A whole number from 0 up to what JSON readers hold exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def is_finite(value: Any) -> bool:
    """A number that JSON can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value
