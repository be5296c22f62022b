"""Watching an attempt: tell the portal what the engine sees, do what it answers, until it says settle."""

import asyncio
from typing import Any

from flows.engines.base import AgentStatus, Engine, EngineProblem, LaunchPlan
from flows.portal_client import FlowClient


async def agents_of(engine: Engine, plan: LaunchPlan) -> list[AgentStatus]:
    """What the engine sees of every node's agent."""
    return [await asyncio.to_thread(engine.find, plan, node.name) for node in plan.nodes]


async def launch_agents(client: FlowClient, engine: Engine, plan: LaunchPlan, names: list[str]) -> None:
    """Start an agent on each of these nodes, all at once; the first problem is raised when all are done."""
    nodes = {node.name: node for node in plan.nodes}

    async def launch(name: str) -> None:
        grant = await client.launch(name)
        await asyncio.to_thread(
            lambda: engine.launch(
                plan,
                nodes[name],
                generation=int(grant["generation"]),
                token=str(grant["token"]),
                portal_url=str(grant["portal_url"]),
            )
        )

    results = await asyncio.gather(*(launch(name) for name in names), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def watch(client: FlowClient, engine: Engine, plan: LaunchPlan) -> None:
    """Return when the attempt is to be settled. A running gang is adopted: its agents are alive and stay."""
    problem: dict[str, Any] | None = None
    while True:
        seen = await agents_of(engine, plan)
        answer = await client.heartbeat(
            phase="watch",
            agents=[{"node": a.node, "generation": a.generation, "alive": a.alive} for a in seen],
            problem=problem,
        )
        problem = None
        if answer["action"] == "settle":
            return
        if answer["launch"]:
            try:
                await launch_agents(client, engine, plan, list(answer["launch"]))
            except EngineProblem as error:
                problem = {"code": error.code, "message": error.message, "node": error.node}
            continue
        await asyncio.sleep(float(answer["heartbeat_s"]))
