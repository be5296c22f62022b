"""Cohorts (a tree), queues (a team's) and limits per GPU type."""

from django.db import models

from portal import ids
from portal.accounts.models import Team

WITHIN_QUEUE = (
    ("never", "never"),
    ("lower_priority", "lower priority"),
    ("lower_or_newer_equal", "lower, or equal and newer"),
)
RECLAIM = (("never", "never"), ("lower_priority", "lower priority"), ("any", "any"))
BORROW = (("never", "never"), ("lower_priority", "lower priority"))


class Cohort(models.Model):
    """Queues and cohorts that lend idle quota to each other."""

    name = models.SlugField(primary_key=True, max_length=60)
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="children")
    weight = models.PositiveIntegerField(default=1)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Queue(models.Model):
    """Where a team's jobs wait. Its name is unique over all teams, since the scheduler orders by it."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.queue_id, editable=False)
    name = models.SlugField(unique=True, max_length=60)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="queues")
    cohort = models.ForeignKey(Cohort, null=True, blank=True, on_delete=models.PROTECT, related_name="queues")
    weight = models.PositiveIntegerField(default=1)
    within_queue = models.CharField(max_length=24, choices=WITHIN_QUEUE, default="lower_priority")
    reclaim_within_cohort = models.CharField(max_length=24, choices=RECLAIM, default="any")
    borrow_within_cohort = models.CharField(max_length=24, choices=BORROW, default="never")
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Quota(models.Model):
    """A limit of one queue or cohort on one GPU type. An empty borrow or lend limit is "no limit", not zero."""

    queue = models.ForeignKey(Queue, null=True, blank=True, on_delete=models.CASCADE, related_name="quotas")
    cohort = models.ForeignKey(Cohort, null=True, blank=True, on_delete=models.CASCADE, related_name="quotas")
    gpu_type = models.SlugField(max_length=60)
    nominal = models.PositiveIntegerField()
    borrow_limit = models.PositiveIntegerField(null=True, blank=True)
    lend_limit = models.PositiveIntegerField(null=True, blank=True)
    # GPUs that attempts of the queue hold now: moved in the transaction that moves the attempt.
    used = models.PositiveIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("gpu_type",)
        constraints = (
            models.UniqueConstraint(fields=("queue", "gpu_type"), name="one_quota_per_queue_and_type"),
            models.UniqueConstraint(fields=("cohort", "gpu_type"), name="one_quota_per_cohort_and_type"),
            models.CheckConstraint(
                condition=models.Q(queue__isnull=False, cohort__isnull=True)
                | models.Q(queue__isnull=True, cohort__isnull=False),
                name="quota_of_a_queue_or_a_cohort",
            ),
        )

    def __str__(self) -> str:
        return f"{self.queue or self.cohort}: {self.nominal} {self.gpu_type}"

    @property
    def owner_name(self) -> str:
        """The name of the queue or cohort that this limit is of."""
        return str(self.queue or self.cohort)
