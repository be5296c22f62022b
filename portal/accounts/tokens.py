"""API tokens: ``yard_<public part>_<secret>``, kept as a keyed digest."""

import hashlib
import hmac
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.conf import settings

from portal.accounts.models import Token, User
from portal.accounts.policy import ALL_SCOPES
from portal.errors import PortalError

PREFIX = "yard"
MAX_LIFETIME = timedelta(days=365)
DEFAULT_SCOPES = ("jobs:read", "jobs:write", "quota:read")


def keyed_digest(text: str) -> str:
    """HMAC-SHA256 of the text under the portal's token key, as 64 hex digits."""
    return hmac.new(settings.TOKEN_KEY.encode(), text.encode(), hashlib.sha256).hexdigest()


def token_create(
    *, user: User, name: str, scopes: Collection[str], lifetime: timedelta, now: datetime
) -> tuple[Token, str]:
    """The new token's row and its text, which is shown this once."""
    unknown = sorted(set(scopes) - ALL_SCOPES)
    if unknown:
        raise PortalError(f"Unknown scope {unknown[0]}. Known: {', '.join(sorted(ALL_SCOPES))}.")
    if not timedelta(0) < lifetime <= MAX_LIFETIME:
        raise PortalError(f"A token lives between a moment and {MAX_LIFETIME.days} days.")
    public, secret = secrets.token_hex(8), secrets.token_urlsafe(32).replace("_", "-")
    token = Token.objects.create(
        user=user,
        name=name,
        public_part=public,
        digest=keyed_digest(secret),
        scopes=sorted(scopes),
        created_at=now,
        expires_at=now + lifetime,
    )
    return token, f"{PREFIX}_{public}_{secret}"


def token_find(text: str, *, now: datetime) -> Token | None:
    """The live token that this text is, or None."""
    prefix, _, rest = text.partition("_")
    public, _, secret = rest.partition("_")
    if prefix != PREFIX or not public or not secret:
        return None
    token = Token.objects.select_related("user").filter(public_part=public).first()
    if token is None or not hmac.compare_digest(token.digest, keyed_digest(secret)):
        return None
    if token.revoked_at is not None or token.expires_at <= now or not token.user.is_active:
        return None
    if token.last_used_at is None or now - token.last_used_at > timedelta(minutes=5):
        Token.objects.filter(pk=token.pk).update(last_used_at=now)
    return token
