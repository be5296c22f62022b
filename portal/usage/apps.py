"""Django's registration of the app."""

from django.apps import AppConfig


class UsageConfig(AppConfig):
    """The ledger: each GPU-second that was held, booked to one cause."""

    name = "portal.usage"
    label = "usage"
