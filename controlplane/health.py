"""Is this process able to serve? Asked by `./assay up`, by the compose file and by the reconciler's own liveness clock."""

from django.db import DatabaseError, connection
from django.http import JsonResponse


def health(request):
    """200 when Postgres answers, 503 with the reason when it does not."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return JsonResponse({"status": "unavailable", "reason": f"Postgres: {error}".strip()}, status=503)
    return JsonResponse({"status": "ok"})
