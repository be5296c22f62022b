"""The append-only table behind the audit log and the activity feed."""

from django.db import models


class Event(models.Model):
    """Something that happened, written in the transaction in which it happened."""

    seq = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_index=True)
    actor = models.CharField(max_length=150)
    verb = models.CharField(max_length=40)
    subject_kind = models.CharField(max_length=20)
    subject_id = models.CharField(max_length=60)
    team_id = models.CharField(max_length=40, blank=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("seq",)
        indexes = (models.Index(fields=("subject_kind", "subject_id", "seq")),)

    def __str__(self) -> str:
        return f"{self.verb} {self.subject_kind} {self.subject_id}"
