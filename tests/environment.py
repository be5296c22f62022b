"""Loaded before Django reads its settings: which database the suite runs on.

SQLite, or what TRAINYARD_TEST_DATABASE_URL names.
"""

import os
import secrets
import tempfile
from pathlib import Path

_DATA = Path(tempfile.mkdtemp(prefix="trainyard-test-"))
os.environ["TRAINYARD_DATA_DIR"] = str(_DATA)
os.environ["TRAINYARD_DATABASE_URL"] = (
    os.environ.get("TRAINYARD_TEST_DATABASE_URL") or f"sqlite:///{_DATA}/portal.sqlite3"
)
os.environ["TRAINYARD_BROKER_URL"] = os.environ.get("TRAINYARD_TEST_BROKER_URL", "")
os.environ.setdefault("TRAINYARD_SECRET_KEY", secrets.token_urlsafe(48))
os.environ["TRAINYARD_ALLOWED_HOSTS"] = "127.0.0.1,localhost,testserver"
