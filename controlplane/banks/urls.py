from django.urls import path

from controlplane.banks import views

urlpatterns = [
    path("banks", views.banks, name="banks"),
    path("banks/imports/<uuid:pk>", views.bank_import, name="bank-import"),
    path("banks/<str:slug>", views.bank, name="bank"),
    path("banks/<str:slug>/<int:number>", views.bank, name="bank-version"),
]
