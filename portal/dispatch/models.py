"""The scheduler's lease, and the outbox of flow runs to be made."""

from django.db import models

from portal.jobs.models import Attempt


class Lease(models.Model):
    """Who may decide. A writer whose epoch is not the row's is refused by its own update."""

    name = models.CharField(primary_key=True, max_length=40)
    holder = models.CharField(max_length=200)
    epoch = models.PositiveBigIntegerField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name}: epoch {self.epoch}"


class LaunchOrder(models.Model):
    """One flow run to be made for one epoch of an attempt. Written with the decision, sent afterwards."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="launch_orders")
    epoch = models.PositiveIntegerField()
    created_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    flow_run_id = models.CharField(max_length=60, blank=True)
    num_tries = models.PositiveIntegerField(default=0)
    next_try_at = models.DateTimeField()
    last_error = models.CharField(max_length=500, blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("attempt", "epoch"), name="one_order_per_epoch"),)

    def __str__(self) -> str:
        return f"{self.attempt_id}:{self.epoch}"
