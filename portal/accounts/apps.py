"""Django's registration of the app."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """People, teams, roles, tokens."""

    name = "portal.accounts"
    label = "accounts"
