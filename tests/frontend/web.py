"""The web process of the browser tests: Assay itself, one page that fails, so that its error page can be looked at, and one without nodes.

`python -m tests.frontend.web PORT PARENT`; it ends when the process PARENT does.
"""

import os
import signal
import sys

import uvicorn

from controlplane.services import processes


def broken(request):
    raise RuntimeError("this page fails on purpose")


def without_nodes(request, slug):
    """A bank's page as it is while no node is ready; the world's nodes stay as they are."""
    from controlplane.banks import views
    from controlplane.cluster.models import Node
    from django.db import transaction

    with transaction.atomic():
        Node.objects.update(state="cordoned")
        answer = views.bank(request, slug)
        transaction.set_rollback(True)
    return answer


def main(port: int, parent: int) -> None:
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:  # it died before it could be watched
        return
    from controlplane.asgi import application
    from controlplane.urls import urlpatterns
    from django.urls import path

    urlpatterns += [path("broken", broken), path("without-nodes/<str:slug>", without_nodes)]
    uvicorn.run(application, host="127.0.0.1", port=port, lifespan="off", access_log=False, log_level="warning")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
