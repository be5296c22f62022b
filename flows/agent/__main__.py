"""``python -m flows.agent --folder FOLDER``."""

import argparse
import json
import os
import sys
from pathlib import Path

from flows.agent.agent import Agent
from flows.agent.plan import BadPlan, plan_read
from flows.processes import PR_SET_CHILD_SUBREAPER, ProcessId, prctl, write_whole


def main() -> int:
    """The agent's exit status: 0 let go, 2 bad folder, 3 replaced or over, 4 told to leave."""
    parser = argparse.ArgumentParser(prog="python -m flows.agent", description="The agent of one node of one attempt.")
    parser.add_argument("--folder", type=Path, required=True, help="the node's run folder")
    folder: Path = parser.parse_args().folder
    try:
        plan = plan_read(folder)
    except BadPlan as error:
        print(f"agent: {error}", file=sys.stderr)
        return 2
    me = ProcessId.of(os.getpid())
    assert me is not None
    identity = me.as_json() | {"generation": plan.generation, "attempt": plan.attempt, "node": plan.node}
    write_whole(folder / "agent.json", json.dumps(identity).encode(), durable=True)
    # What a rank leaves behind becomes ours, and is killed with its group.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    return Agent(plan).run()


if __name__ == "__main__":
    sys.exit(main())
