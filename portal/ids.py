"""Opaque ids: a kind before the underscore, a UUID of version 7 (RFC 9562) after it."""

import secrets
import time


def new_id(kind: str) -> str:
    """A new id such as ``job_0193f0…``: ids made later sort later, to the millisecond."""
    value = (time.time_ns() // 1_000_000) << 80 | 0x7 << 76 | secrets.randbits(12) << 64
    value |= 0b10 << 62 | secrets.randbits(62)
    return f"{kind}_{value:032x}"


def user_id() -> str:
    """A new user's id."""
    return new_id("usr")


def team_id() -> str:
    """A new team's id."""
    return new_id("team")


def token_id() -> str:
    """A new token's id."""
    return new_id("tok")


def queue_id() -> str:
    """A new queue's id."""
    return new_id("que")


def job_id() -> str:
    """A new job's id."""
    return new_id("job")


def attempt_id() -> str:
    """A new attempt's id."""
    return new_id("att")


def checkpoint_id() -> str:
    """A new checkpoint's id."""
    return new_id("ckpt")
