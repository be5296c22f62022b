"""The Django portal: people, quotas, job requests, reports."""

# `celery -A portal` looks for the application here.
from portal.celery import app as celery

__all__ = ["celery"]
