"""The ledger: every GPU-second that an attempt held, booked once, to one cause."""

from django.db import models

from portal.accounts.models import Team, User
from portal.jobs.models import Attempt, Job


class Cause(models.TextChoices):
    """Where held GPU time goes. The causes of an attempt sum to what it held, exactly."""

    PRODUCTIVE = "productive"
    STARTUP = "startup"
    COMPILE = "compile"
    DATA_WAIT = "data_wait"
    CHECKPOINT_STALL = "checkpoint_stall"
    RESTORE = "restore"
    RECOMPUTED = "recomputed"
    STRAGGLER = "straggler"
    HANG_DETECTION = "hang_detection"
    IDLE_HOLD = "idle_hold"
    TEARDOWN = "teardown"


class UsageEntry(models.Model):
    """GPU time of one attempt on one day (UTC) for one cause, in nanoseconds so that sums are exact."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="usage")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="usage")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="usage")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="usage")
    gpu_type = models.SlugField(max_length=60)
    day = models.DateField(db_index=True)
    cause = models.CharField(max_length=20, choices=Cause)
    gpu_ns = models.BigIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("attempt", "day", "cause"), name="usage_once"),
            models.CheckConstraint(condition=models.Q(gpu_ns__gte=0), name="usage_not_negative"),
        )

    def __str__(self) -> str:
        return f"{self.cause} of {self.attempt_id}"
