"""Whether the web process lives, and whether it can serve."""

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse


def healthz(request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """The database answers and has every migration."""
    try:
        executor = MigrationExecutor(connection)
        waiting = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError:
        return JsonResponse({"status": "waiting", "why": "the database does not answer"}, status=503)
    if waiting:
        return JsonResponse({"status": "waiting", "why": "the database lacks migrations"}, status=503)
    return JsonResponse({"status": "ready"})
