"""Ranks for the trainer's tests."""

import importlib.util
from collections.abc import Iterator

import pytest

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("torch") is None:
    # The trainer is an extra of the installation; without it there is nothing of it to test.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def warm() -> Iterator[object]:
    """The process that ranks are forked from."""
    from tests.trainer.gang import WarmStart

    start = WarmStart()
    yield start
    start.close()
