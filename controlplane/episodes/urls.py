from django.urls import path

from controlplane.episodes import views

urlpatterns = [
    path("runs/<uuid:pk>/episodes", views.episodes, name="episodes"),
    path("episodes/<uuid:pk>", views.episode, name="episode"),
    path("episodes/<uuid:pk>/turns", views.more_turns, name="episode-turns"),
    path("episodes/<uuid:pk>/label", views.label, name="episode-label"),
    path("episodes/<uuid:pk>/compare/<uuid:other>", views.compare, name="episode-compare"),
]
