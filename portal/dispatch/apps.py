"""Django's registration of the app."""

from django.apps import AppConfig


class DispatchConfig(AppConfig):
    """The scheduler's process: read, decide, apply."""

    name = "portal.dispatch"
    label = "dispatch"
