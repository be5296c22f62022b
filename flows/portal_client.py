"""The flow's calls to the portal (docs/protocol.md): retried while the portal is away, typed when refused."""

import asyncio
import random
import time
from typing import Any

import httpx

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 3.0
REQUEST_TIMEOUT_S = 15.0


class StaleEpoch(Exception):
    """Another flow has taken over: leave and touch nothing."""


class AttemptOver(Exception):
    """The attempt has ended: nothing is left to do."""


class Refused(Exception):
    """The portal understood and said no; trying again would not change that."""


class PortalAway(Exception):
    """The portal did not answer within the patience."""


class FlowClient:
    """The calls of one attempt's flow. ``patience_s`` bounds each call's retries."""

    def __init__(self, *, url: str, token: str, attempt: str, epoch: int, patience_s: float) -> None:
        self.attempt, self.epoch, self.patience_s = attempt, epoch, patience_s
        self._http = httpx.AsyncClient(
            base_url=f"{url.rstrip('/')}/api/v1/flow/attempts/{attempt}/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=REQUEST_TIMEOUT_S,
            # The portal is named by its settings alone; a proxy for the outside is none for it.
            trust_env=False,
        )

    async def claim(self, *, flow_run_id: str, holder: str) -> dict[str, Any]:
        """The launch plan."""
        return await self._post("claim", flow_run_id=flow_run_id, holder=holder)

    async def heartbeat(
        self, *, phase: str, agents: list[dict[str, Any]], problem: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """What to do now."""
        return await self._post("heartbeat", phase=phase, agents=agents, problem=problem)

    async def launch(self, node: str) -> dict[str, Any]:
        """The next generation and token for a node."""
        return await self._post(f"agents/{node}/launch")

    async def settle(self, *, checkpoint: dict[str, Any] | None) -> dict[str, Any]:
        """The attempt's final state."""
        return await self._post("settle", gone=True, checkpoint=checkpoint)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _post(self, path: str, **body: Any) -> dict[str, Any]:
        deadline, pause = time.monotonic() + self.patience_s, FIRST_PAUSE_S
        while True:
            try:
                response = await self._http.post(path, json={"epoch": self.epoch, **body})
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code < 500 and response.status_code not in (408, 429):
                return _answer(response)
            if time.monotonic() + pause > deadline:
                raise PortalAway(f"The portal has not answered {path} for {self.patience_s:.0f} s.")
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE_S, 2 * pause)


def _answer(response: httpx.Response) -> dict[str, Any]:
    try:
        data = response.json()
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise Refused(f"{response.request.url.path} answered {response.status_code} and no JSON object.")
    if response.status_code < 400:
        return data
    code, detail = str(data.get("code", "")), str(data.get("detail", ""))
    if code == "stale-epoch":
        raise StaleEpoch(detail)
    if code == "attempt-over" or response.status_code in (404, 410):
        raise AttemptOver(detail)
    raise Refused(f"{response.status_code} {code}: {detail}")
