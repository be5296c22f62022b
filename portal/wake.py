"""A hint to the scheduler that something changed. Lost hints cost a second, never a job."""

import time

import redis
import structlog
from django.conf import settings
from django.db import transaction

log = structlog.get_logger(__name__)
KEY = "trainyard:wake"
_client: redis.Redis | None = None


def broker_client() -> redis.Redis | None:
    """A client of the broker, or None where there is no Redis (tests, commands)."""
    global _client
    url = settings.CELERY_BROKER_URL
    if _client is None and url.startswith(("redis", "unix")):
        # Celery writes a Unix socket as redis+socket://, redis-py as unix://.
        _client = redis.Redis.from_url(
            url.replace("redis+socket://", "unix://"), socket_timeout=5, socket_connect_timeout=1
        )
    return _client


def wake_scheduler() -> None:
    """After the commit, tell the scheduler to look now."""
    transaction.on_commit(_send)


def _send() -> None:
    client = broker_client()
    if client is None:
        return
    try:
        pipe = client.pipeline(transaction=False)
        pipe.lpush(KEY, "1")
        pipe.ltrim(KEY, 0, 0)
        pipe.execute()
    except redis.RedisError as error:
        log.info("wake_hint_lost", error=str(error))


def wait_for_wake(timeout_s: float) -> None:
    """Return when a hint arrives, or after the timeout."""
    client = broker_client()
    if client is not None:
        try:
            client.blpop([KEY], timeout=timeout_s)
            return
        except redis.RedisError:
            pass
    time.sleep(timeout_s)
