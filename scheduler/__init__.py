"""Pure scheduling decisions: `decide(snapshot)` answers with a plan."""

from scheduler.plan import Plan, Reason
from scheduler.planner import decide
from scheduler.snapshot import Snapshot

__all__ = ["Plan", "Reason", "Snapshot", "decide"]
