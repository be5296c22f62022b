"""Django's registration of the app."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Jobs, attempts, and everything that happens to them."""

    name = "portal.jobs"
    label = "jobs"

    def import_models(self) -> None:
        """Models stand in two files: what a job is, and what its ranks report."""
        super().import_models()
        from portal.jobs import telemetry  # noqa: F401
