from django.urls import path

from controlplane.evals import views

urlpatterns = [path("runs/<uuid:pk>/evaluation", views.evaluation, name="run-evaluation")]
