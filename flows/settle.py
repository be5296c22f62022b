"""The end of an attempt: prove that nothing is left, verify the newest checkpoint, tell the portal."""

import asyncio
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from flows.engines.base import Engine, LaunchPlan
from flows.portal_client import FlowClient

# Agents that the portal lets go leave by themselves, with their last report; then the engine helps.
LEAVE_BY_THEMSELVES_S = 4.0
MUST_BE_GONE_S = 30.0


class NotGone(Exception):
    """Processes of the attempt survive SIGKILL (a hung device or file system)."""


async def settle(client: FlowClient, engine: Engine, plan: LaunchPlan) -> str:
    """The attempt's final state."""
    if not await _wait_gone(engine, plan, LEAVE_BY_THEMSELVES_S):
        await asyncio.to_thread(engine.stop, plan)
        deadline = time.monotonic() + MUST_BE_GONE_S
        while not await _wait_gone(engine, plan, 2.0):
            if time.monotonic() > deadline:
                raise NotGone(f"Processes of {plan.attempt} do not die; the node needs an administrator.")
            await asyncio.to_thread(engine.stop, plan)
            await client.heartbeat(phase="settle", agents=[])
    checkpoint = await asyncio.to_thread(newest_checkpoint, plan.job_dir / "checkpoints")
    answer = await client.settle(checkpoint=checkpoint)
    return str(answer["state"])


async def _wait_gone(engine: Engine, plan: LaunchPlan, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(engine.gone, plan):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def newest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint of the job, with what its manifest says about it; None when there is none."""
    steps = sorted((p for p in folder.glob("step_*") if p.is_dir() and p.suffix != ".tmp"), reverse=True)
    for path in steps:
        if (path / "COMMITTED").is_file():
            state = "verified" if _verifies(path) else "corrupt"
            return {"path": str(path), "step": int(path.name.removeprefix("step_")), "state": state}
    return None


def _verifies(path: Path) -> bool:
    try:
        text = (path / "manifest.json").read_bytes()
        if hashlib.sha256(text).hexdigest() != (path / "COMMITTED").read_text().strip():
            return False
        for name, entry in json.loads(text)["files"].items():
            file = path / name
            if file.stat().st_size != entry["bytes"]:
                return False
            with file.open("rb") as data:
                if hashlib.file_digest(data, "sha256").hexdigest() != entry["sha256"]:
                    return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True
