from django.urls import path

from controlplane.accounts import views

urlpatterns = [
    path("login", views.login_page, name="login"),
    path("login/link/<str:token>", views.login_link, name="login-link"),
    path("logout", views.sign_out, name="logout"),
    path("settings", views.settings_page, name="settings"),
    path("settings/theme", views.set_theme, name="theme"),
    path("settings/tokens", views.create_token, name="token-create"),
    path("settings/tokens/<int:pk>/revoke", views.revoke_token, name="token-revoke"),
    path("settings/teams/<int:team>/members", views.invite, name="member-invite"),
    path("settings/members/<int:pk>/role", views.change_role, name="member-role"),
    path("settings/members/<int:pk>/remove", views.remove_member, name="member-remove"),
]
