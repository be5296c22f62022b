"""How REST knows its caller: ``Authorization: Bearer yard_…``."""

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from portal.accounts.models import Token, User
from portal.accounts.tokens import token_find


class TokenAuthentication(BaseAuthentication):
    """A person's or a service account's API token."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        """The token's user, with the token's scopes on it; None when there is no bearer token."""
        scheme, _, text = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = token_find(text.strip(), now=timezone.now())
        if token is None:
            raise AuthenticationFailed("This token is unknown, revoked or past its date. Make a new one.")
        token.user.token_scopes = frozenset(token.scopes)  # type: ignore[attr-defined]
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """What a 401 answer names as the way in."""
        return "Bearer"
