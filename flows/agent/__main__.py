"""``python -m flows.agent --folder FOLDER``."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from flows.agent.agent import REPLACED, Agent
from flows.agent.plan import AgentPlan, BadPlan, plan_read
from flows.files import lock_try, read_json, write_whole
from flows.processes import PR_SET_CHILD_SUBREAPER, ProcessId, prctl

BAD_FOLDER = 2
# The agent before was killed before this one was started: it needs only to be gone.
LOCK_TIMEOUT_S = 5.0


def main() -> int:
    """The agent's exit status: 0 let go, 2 bad folder, 3 replaced or over, 4 told to leave."""
    parser = argparse.ArgumentParser(prog="python -m flows.agent", description="The agent of one node of one attempt.")
    parser.add_argument("--folder", type=Path, required=True, help="the node's run folder")
    folder: Path = parser.parse_args().folder.absolute()
    try:
        # Held as long as this process lives: of two agents in one folder, one works and one leaves.
        lock = _lock(folder)
        plan = plan_read(folder)
    except (BadPlan, OSError) as error:
        print(f"agent: {error}", file=sys.stderr)
        return BAD_FOLDER
    if lock is None or _is_old(plan):
        print(f"agent: another agent has {folder}", file=sys.stderr)
        return REPLACED
    me = ProcessId.of(os.getpid())
    assert me is not None
    identity = me.as_json() | {"generation": plan.generation, "attempt": plan.attempt, "node": plan.node}
    write_whole(folder / "agent.json", json.dumps(identity).encode(), durable=True)
    # What a rank leaves behind becomes ours, and is killed with it.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    return Agent(plan).run()


def _lock(folder: Path) -> int | None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while (lock := lock_try(folder / "agent.lock")) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return lock


def _is_old(plan: AgentPlan) -> bool:
    """A newer agent was here already."""
    before = read_json(plan.folder / "agent.json") or {}
    return int(before.get("generation", 0)) > plan.generation


if __name__ == "__main__":
    sys.exit(main())
