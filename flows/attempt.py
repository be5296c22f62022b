"""The Prefect flow of one attempt: claim → preflight → launch and watch → settle.

Thin on purpose: the portal decides, agents own the ranks. Killed at any point, it is started again under
the next epoch and finds everything where it was.
"""

import asyncio
import os
import socket

from prefect import flow, get_run_logger, task
from prefect.runtime import flow_run

from flows.engines.base import EngineProblem, LaunchPlan, NodePart
from flows.engines.local import LocalEngine
from flows.portal_client import AttemptOver, FlowClient, StaleEpoch
from flows.processes import ProcessId
from flows.settings import settings
from flows.settle import settle
from flows.watch import watch


@task(retries=1, retry_delay_seconds=0.2, task_run_name="preflight-{node.name}", persist_result=False)
async def preflight(plan: LaunchPlan, node: NodePart) -> None:
    """The node can take its part: folder, room."""
    await asyncio.to_thread(LocalEngine().check, plan, node)


@flow(name="attempt", retries=0, persist_result=False, log_prints=False, validate_parameters=False)
async def attempt(attempt_id: str, epoch: int) -> str:
    """Run one attempt to its end; its final state, or why this flow left."""
    log = get_run_logger()
    config = settings()
    client = FlowClient(
        url=config.portal_url,
        token=config.token(),
        attempt=attempt_id,
        epoch=int(epoch),
        patience_s=config.portal_patience_s,
    )
    try:
        plan = LaunchPlan.from_answer(
            await client.claim(flow_run_id=str(flow_run.get_id() or ""), holder=_holder())
        )
        engine = LocalEngine()
        problem = await _preflight(plan)
        if problem is not None:
            await client.heartbeat(phase="preflight", agents=[], problem=problem)
        await watch(client, engine, plan)
        state = await settle(client, engine, plan)
        log.info("attempt %s: %s", attempt_id, state)
        return state
    except (StaleEpoch, AttemptOver) as error:
        # Another flow has taken over, or all is done: leaving is the right end of this run.
        log.info("leaving attempt %s: %s", attempt_id, error)
        return "left"
    finally:
        await client.close()


async def _preflight(plan: LaunchPlan) -> dict[str, object] | None:
    """All nodes at once; the first problem in node order, or None."""
    futures = [preflight(plan, node) for node in plan.nodes]
    for result in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(result, EngineProblem):
            return {"code": result.code, "message": result.message, "node": result.node}
        if isinstance(result, BaseException):
            raise result
    return None


def _holder() -> str:
    """This very process: the same one may claim again, no other may."""
    me = ProcessId.of(os.getpid())
    return f"{socket.gethostname()}:{os.getpid()}:{me.start_ticks if me else 0}"
