"""The nodes that the scheduler may place gangs on."""

from django.db import models


class NodeState(models.TextChoices):
    """Only ``ready`` nodes get new work."""

    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DOWN = "down"
    QUARANTINED = "quarantined"


class Node(models.Model):
    """A machine, or a virtual node: an inventory row whose agent is a process on this machine."""

    name = models.CharField(primary_key=True, max_length=63)
    gpu_type = models.SlugField(max_length=60, db_index=True)
    num_gpus = models.PositiveIntegerField()
    address = models.CharField(max_length=255, default="127.0.0.1")
    labels = models.JSONField(default=dict, blank=True)
    state = models.CharField(max_length=12, choices=NodeState, default=NodeState.READY)
    state_reason = models.CharField(max_length=500, blank=True)
    state_since = models.DateTimeField()
    sample = models.JSONField(default=dict, blank=True)
    sampled_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name
