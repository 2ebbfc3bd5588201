from django.urls import path

from controlplane.checkpoints import views

urlpatterns = [
    path("runs/<uuid:pk>/checkpoints", views.checkpoints, name="run-checkpoints"),
    path("checkpoints/<uuid:pk>/pin", views.pin, name="checkpoint-pin"),
]
