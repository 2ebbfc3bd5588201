from django.apps import AppConfig


class ControlPlaneConfig(AppConfig):
    name = "controlplane"

    def ready(self):
        # Makes our Celery app the current one in every Django process, so that `.delay()` never falls back to a default broker.
        from . import celery  # noqa: F401
