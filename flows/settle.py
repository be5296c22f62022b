"""The end of an attempt: prove that nothing is left, verify the newest checkpoint, tell the portal."""

import asyncio
import time
from pathlib import Path
from typing import Any

from flows.engines.base import Engine, LaunchPlan
from flows.portal_client import FlowClient

# Agents that the portal lets go leave by themselves, with their last report; then the engine helps.
LEAVE_BY_THEMSELVES_S = 4.0
MUST_BE_GONE_S = 60.0
# GPUs are held until an attempt is settled: what takes longer to read is verified by whoever loads it.
MAX_VERIFIED_BYTES = 4 * 1024**3


class NotGone(Exception):
    """Processes of the attempt survive SIGKILL (a hung device or file system)."""


async def settle(client: FlowClient, engine: Engine, plan: LaunchPlan) -> str:
    """The attempt's final state."""
    deadline = time.monotonic() + MUST_BE_GONE_S
    gone = await _wait_gone(engine, plan, LEAVE_BY_THEMSELVES_S)
    while not gone:
        await asyncio.to_thread(engine.stop, plan)
        gone = await _wait_gone(engine, plan, 2.0)
        agents = [row.as_json() for row in await asyncio.to_thread(engine.status, plan)]
        await client.heartbeat(phase="settle", agents=agents)
        if not gone and time.monotonic() > deadline:
            raise NotGone(f"Processes of {plan.attempt} do not die; the node needs an administrator.")
    checkpoint = await asyncio.to_thread(newest_checkpoint, plan.checkpoint_dir)
    answer = await client.settle(checkpoint=checkpoint)
    await asyncio.to_thread(engine.cleanup, plan)
    return str(answer["state"])


async def _wait_gone(engine: Engine, plan: LaunchPlan, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(engine.gone, plan):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def newest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The job's newest checkpoint and whether it verifies; None when there is none or it is too large."""
    # The format is the trainer's: whoever writes it also says what is sound. Free of torch.
    from trainer import manifest

    for step, path in manifest.folders_by_step(folder):
        if not (path / manifest.MARKER).is_file():
            continue  # a save that was cut short is no checkpoint
        if sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) > MAX_VERIFIED_BYTES:
            return None
        fault = manifest.fault_of(path)
        return {"path": str(path), "step": step, "state": "verified" if fault is None else "corrupt"}
    return None
