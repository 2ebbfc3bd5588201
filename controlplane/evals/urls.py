from django.urls import path

from controlplane.evals import evaluate_views, views

urlpatterns = [
    path("evaluate", evaluate_views.evaluate, name="evaluate"),
    path("evaluate/check", evaluate_views.check, name="evaluate-check"),
    path("episodes/<uuid:pk>/regrade", evaluate_views.regrade, name="episode-regrade"),
    path("episodes/<uuid:pk>/again", evaluate_views.run_again, name="episode-again"),
    path("runs/<uuid:pk>/evaluation", views.evaluation, name="run-evaluation"),
]
