"""Django's registration of the app."""

from django.apps import AppConfig


class EventsConfig(AppConfig):
    """The one append-only record of what happened."""

    name = "portal.events"
    label = "events"
