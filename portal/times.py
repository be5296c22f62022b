"""Instants: nanoseconds of Unix time in reports, aware datetimes in rows."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def from_ns(t_ns: int) -> datetime:
    """The instant as an aware datetime, to the microsecond."""
    return _EPOCH + timedelta(microseconds=t_ns // 1000)


def to_ns(at: datetime) -> int:
    """The instant in nanoseconds of Unix time, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000
