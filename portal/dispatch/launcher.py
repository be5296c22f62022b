"""Turning launch orders into Prefect flow runs. The only place of the portal that knows Prefect."""

import base64
from datetime import datetime, timedelta
from typing import Any

import httpx
import structlog
from django.conf import settings
from django.db.models import F

from portal.dispatch.models import LaunchOrder
from portal.jobs.lifecycle import ATTEMPT_FINAL

log = structlog.get_logger(__name__)
DEPLOYMENT = "attempt/trainyard"
TIMEOUT_S = 10.0
_deployment_id: str | None = None


def order_send(*, order_id: int, now: datetime) -> bool:
    """Whether the order's flow run exists now. Sending again makes no second one: the key is the same."""
    order = LaunchOrder.objects.select_related("attempt").filter(pk=order_id, sent_at__isnull=True).first()
    if order is None:
        return True
    attempt = order.attempt
    if order.epoch != attempt.epoch or attempt.state in ATTEMPT_FINAL:
        LaunchOrder.objects.filter(pk=order.pk).update(sent_at=now, last_error="superseded")
        return True
    try:
        run_id = flow_run_create(attempt_id=attempt.pk, epoch=order.epoch)
    except (httpx.HTTPError, LaunchRefused) as error:
        back_off = timedelta(seconds=min(30.0, 0.5 * 2**order.num_tries))
        LaunchOrder.objects.filter(pk=order.pk, sent_at__isnull=True).update(
            num_tries=F("num_tries") + 1, next_try_at=now + back_off, last_error=str(error)[:500]
        )
        log.warning("launch_failed", attempt=attempt.pk, epoch=order.epoch, error=str(error))
        return False
    LaunchOrder.objects.filter(pk=order.pk).update(sent_at=now, flow_run_id=run_id)
    return True


class LaunchRefused(Exception):
    """Prefect answered and did not do it."""


def flow_run_create(*, attempt_id: str, epoch: int) -> str:
    """The id of the flow run with the key ``<attempt>:<epoch>``, made now or earlier."""
    global _deployment_id
    with httpx.Client(base_url=settings.ENVIRONMENT.prefect_api_url, headers=_headers(), timeout=TIMEOUT_S) as client:
        if _deployment_id is None:
            _deployment_id = str(_answer(client.get(f"/deployments/name/{DEPLOYMENT}"))["id"])
        response = client.post(
            f"/deployments/{_deployment_id}/create_flow_run",
            json={
                "parameters": {"attempt_id": attempt_id, "epoch": epoch},
                "idempotency_key": f"{attempt_id}:{epoch}",
                "name": f"{attempt_id}-{epoch}",
            },
        )
        if response.status_code == 404:
            # Prefect's database was made anew: the deployment has another id now.
            _deployment_id = None
        return str(_answer(response)["id"])


def _headers() -> dict[str, str]:
    auth = settings.ENVIRONMENT.prefect_auth
    if not auth:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(auth.encode()).decode()}


def _answer(response: httpx.Response) -> dict[str, Any]:
    if response.status_code >= 400:
        raise LaunchRefused(f"Prefect answered {response.status_code} to {response.request.url.path}")
    data: dict[str, Any] = response.json()
    return data


def orders_due(*, now: datetime, limit: int = 20) -> list[int]:
    """Ids of orders that wait to be sent, oldest first."""
    return list(
        LaunchOrder.objects.filter(sent_at__isnull=True, next_try_at__lte=now)
        .order_by("pk")
        .values_list("pk", flat=True)[:limit]
    )
