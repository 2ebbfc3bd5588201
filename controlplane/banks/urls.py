from django.urls import path

from controlplane.banks import repair_views, views

urlpatterns = [
    path("banks", views.banks, name="banks"),
    path("banks/imports/<uuid:pk>", views.bank_import, name="bank-import"),
    path("banks/<str:slug>", views.bank, name="bank"),
    path("banks/<str:slug>/<int:number>", views.bank, name="bank-version"),
    path("banks/<str:bank>/<int:number>/anchors", repair_views.bank_anchors, name="bank-anchors"),
    path("banks/<str:bank>/<int:number>/prove", repair_views.bank_prove, name="bank-prove"),
    path("banks/<str:bank>/<int:number>/stop", repair_views.bank_stop_proving, name="bank-stop-proving"),
    path("banks/<str:bank>/<int:number>/warmth", repair_views.bank_warmth, name="bank-warmth"),
    path("banks/<str:bank>/<int:number>/warm", repair_views.bank_warm, name="bank-warm"),
    path("banks/<str:bank>/<int:number>/warm/stop", repair_views.bank_stop_warming, name="bank-stop-warming"),
    path("banks/<str:bank>/<int:number>/quarantine", repair_views.bank_quarantine, name="bank-quarantine"),
]
