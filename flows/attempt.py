"""The Prefect flow of one attempt: claim → preflight → launch and watch → settle.

Thin on purpose: the portal decides, agents own the ranks. Killed at any point, it is started again under
the next epoch and finds everything where it was.
"""

import asyncio
import os
import socket
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from flows.engines.base import Engine, EngineProblem, Grant, LaunchPlan, NodePart, engine_of
from flows.portal_client import AttemptOver, FlowClient, PortalAway, StaleEpoch
from flows.processes import ProcessId
from flows.settings import settings
from flows.settle import settle
from flows.watch import watch


@task(retries=1, retry_delay_seconds=0.2, task_run_name="preflight-{node.name}", cache_policy=NO_CACHE)
async def preflight(engine: Engine, plan: LaunchPlan, node: NodePart) -> None:
    """The node can take its part: folder, room."""
    await asyncio.to_thread(engine.check, plan, node)


@task(retries=1, retry_delay_seconds=0.2, task_run_name="launch-{node.name}", cache_policy=NO_CACHE)
async def launch(client: FlowClient, engine: Engine, plan: LaunchPlan, node: NodePart) -> None:
    """The node's agent of the next generation runs."""
    answer = await client.launch(node.name)
    grant = Grant(int(answer["generation"]), str(answer["token"]), str(answer["portal_url"]))
    await asyncio.to_thread(engine.launch, plan, node, grant)


@flow(name="attempt", retries=0, persist_result=False, log_prints=False, validate_parameters=False)
async def attempt(attempt_id: str, epoch: int) -> str:
    """Run one attempt to its end; its final state, or why this flow left."""
    config = settings()
    client = FlowClient(
        url=str(config.portal_url),
        token=config.token(),
        attempt=attempt_id,
        epoch=int(epoch),
        patience_s=config.portal_patience_s,
    )
    try:
        answer = await client.claim(flow_run_id=str(flow_run.get_id() or ""), holder=_holder())
        plan = LaunchPlan.from_answer(answer)
        engine = engine_of(plan.engine)
        problem = await _preflight(engine, plan)

        async def start(node: NodePart) -> None:
            await launch(client, engine, plan, node)

        if not await watch(client, engine, plan, launch=start, problem=problem):
            return "left: the portal has no more use for this flow"
        return await settle(client, engine, plan)
    except (StaleEpoch, AttemptOver, PortalAway) as error:
        # Another flow has taken over, or all is done, or the portal will start another: leaving is right.
        return f"left: {error}"
    finally:
        await client.close()


async def _preflight(engine: Engine, plan: LaunchPlan) -> dict[str, Any] | None:
    """All nodes at once; the first problem in node order, or None."""
    checks = [preflight(engine, plan, node) for node in plan.nodes]
    for result in await asyncio.gather(*checks, return_exceptions=True):
        if isinstance(result, EngineProblem):
            return result.as_json()
        if isinstance(result, BaseException):
            raise result
    return None


def _holder() -> str:
    """This very process: the same one may claim again, no other may."""
    me = ProcessId.of(os.getpid())
    return f"{socket.gethostname()}:{os.getpid()}:{me.start_ticks if me else 0}"
