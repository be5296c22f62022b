"""Django's registration of the app."""

from django.apps import AppConfig


class QuotasConfig(AppConfig):
    """Queues, cohorts and their limits per GPU type."""

    name = "portal.quotas"
    label = "quotas"
