"""Accounts are made by an administrator."""

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest


class ClosedSignupAdapter(DefaultAccountAdapter):
    """Nobody signs up by himself."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Never."""
        return False
