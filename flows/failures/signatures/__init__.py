"""Messages that tell a cause, as data. A row earns its place by the message it knows, of a product that prints it."""

import re
from functools import lru_cache

from flows.failures.signatures.machine import ENGINE, GPU, GPU_MEMORY
from flows.failures.signatures.network import NETWORK, RENDEZVOUS, TIMEOUTS, VICTIMS
from flows.failures.signatures.program import (
    CHECKPOINT,
    CONFIGURATION,
    DATA,
    HANGS,
    NUMERIC,
    SIGNALS,
    USER_CODE,
)
from flows.failures.signatures.signature import Signature
from flows.failures.signatures.surroundings import ENVIRONMENT, SERVICES, STORAGE

# Above stands what is asked first: of two rows that know a line, the first one says what it is.
SIGNATURES: tuple[Signature, ...] = tuple(
    signature
    for group in (
        GPU,
        GPU_MEMORY,
        NETWORK[:5],
        STORAGE[:1],
        CHECKPOINT,
        USER_CODE[:9],
        ENGINE,
        RENDEZVOUS,
        SERVICES,
        NUMERIC,
        CONFIGURATION,
        ENVIRONMENT,
        STORAGE[1:],
        DATA,
        HANGS,
        SIGNALS,
        TIMEOUTS,
        VICTIMS,
        NETWORK[5:],
        USER_CODE[9:],
    )
    for signature in group
)


# Numbers of four digits and more are pids, addresses and times: no row asks for one of them.
LONG_NUMBER = re.compile(r"\d{4,}|0x[0-9a-fA-F]+")
MAX_CACHED_LENGTH = 500


def first_match(line: str) -> Signature | None:
    """What a line says, if it says anything. Lines that differ in long numbers only are judged once."""
    shape = LONG_NUMBER.sub("1000", line)
    return _judged(shape) if len(shape) <= MAX_CACHED_LENGTH else _judge(shape)


def _judge(line: str) -> Signature | None:
    lowered = line.lower()
    return next((s for s in SIGNATURES if s.matches(line, lowered)), None)


_judged = lru_cache(maxsize=8192)(_judge)
