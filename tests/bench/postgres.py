"""A PostgreSQL of a bench's own, with Django's tables in it; gone when the bench ends."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def django_on_postgres() -> Iterator[None]:
    """Django set up on an empty database. Ends the program with a sentence where PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise SystemExit("This bench needs PostgreSQL's programs (Debian package postgresql).")
    folder = Path(tempfile.mkdtemp(prefix="trainyard-bench-pg-"))
    try:
        os.chmod(folder, 0o755)
        data = folder / "pg"
        data.mkdir()
        if os.geteuid() == 0:
            shutil.chown(data, "postgres")
        tools = found[-1].parent
        _run(tools / "initdb", "-D", data / "data", "-A", "trust", "-U", "postgres")
        options = f"-p 54329 -k {data} -c listen_addresses="
        _run(tools / "pg_ctl", "-D", data / "data", "-o", options, "-l", data / "log", "-w", "start")
        try:
            os.environ["TRAINYARD_TEST_DATABASE_URL"] = f"postgresql://postgres@:54329/bench?host={data}"
            with _django():
                yield
        finally:
            _run(tools / "pg_ctl", "-D", data / "data", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str | Path) -> None:
    arguments = [str(part) for part in command]
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        arguments = ["runuser", "-u", "postgres", "--", *arguments]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, cwd="/")


@contextmanager
def _django() -> Iterator[None]:
    import tests.environment  # noqa: F401 - before Django reads its settings

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    import logging

    import structlog
    from django.conf import settings
    from django.test.utils import get_runner

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    runner = get_runner(settings)(verbosity=0, interactive=False)
    old = runner.setup_databases()
    try:
        yield
    finally:
        from django.db import connections

        connections.close_all()
        runner.teardown_databases(old)
