"""Watching an attempt: tell the portal what the engine sees, do what it answers, until it says settle."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from flows.engines.base import Engine, EngineProblem, LaunchPlan, NodePart, Superseded
from flows.portal_client import FlowClient

Launch = Callable[[NodePart], Awaitable[None]]


async def watch(
    client: FlowClient, engine: Engine, plan: LaunchPlan, *, launch: Launch, problem: dict[str, Any] | None
) -> bool:
    """Whether the attempt is to be settled; else another flow sees to it. Starts agents as the portal wishes.

    A gang that runs already is adopted by this alone: its agents are seen alive, so none is started.
    """
    phase = "preflight" if problem else "launch"
    while True:
        agents = [row.as_json() for row in await asyncio.to_thread(engine.status, plan)]
        answer = await client.heartbeat(phase=phase, agents=agents, problem=problem)
        phase, problem = "watch", None
        if answer["action"] != "watch":
            return bool(answer["action"] == "settle")
        if answer["launch"]:
            problem = await launch_all([n for n in plan.nodes if n.name in answer["launch"]], launch)
        else:
            await asyncio.sleep(float(answer["heartbeat_s"]))


async def launch_all(nodes: Iterable[NodePart], launch: Launch) -> dict[str, Any] | None:
    """Start an agent on each of these nodes, all at once; the first problem in node order, or None."""
    results = await asyncio.gather(*(launch(node) for node in nodes), return_exceptions=True)
    problem = None
    for result in results:
        if isinstance(result, EngineProblem):
            problem = problem or result.as_json()
        elif isinstance(result, BaseException) and not isinstance(result, Superseded):
            raise result
    return problem
