"""Django's registration of the app."""

from django.apps import AppConfig


class ClusterConfig(AppConfig):
    """Nodes: their GPUs, health and place."""

    name = "portal.cluster"
    label = "cluster"
