"""The launcher's chore."""

from celery import shared_task
from django.utils import timezone

from portal.dispatch.launcher import order_send


@shared_task(name="portal.dispatch.tasks.launch")
def launch(order_id: int) -> bool:
    """Make the flow run of one launch order."""
    return order_send(order_id=order_id, now=timezone.now())
