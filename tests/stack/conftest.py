"""One stack for all tests of this folder; each of them must leave it usable for the next."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack.stack import Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data: Path = tmp_path_factory.mktemp("stack") / "data"
    running = Stack(data).start().people()
    yield running
    running.stop()
