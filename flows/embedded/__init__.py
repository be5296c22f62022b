"""The whole platform on one machine, under one supervisor: no Docker, no PostgreSQL, no system package."""
