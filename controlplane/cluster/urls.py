from django.urls import path

from controlplane.cluster import views

urlpatterns = [
    path("cluster", views.cluster, name="cluster"),
    path("cluster/nodes/<int:pk>/cordon", views.cordon, name="node-cordon"),
]
