"""Django settings. Every value from outside comes through env.py; nothing here reads os.environ."""

from csp.constants import NONCE, NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict

from controlplane.env import CHECKOUT, SettingsError, read_environment

try:
    ENV = read_environment()
except SettingsError as error:
    raise ImproperlyConfigured(str(error)) from None

SECRET_KEY = ENV.secret_key
DEBUG = ENV.debug
ALLOWED_HOSTS = list(ENV.allowed_hosts)
CSRF_TRUSTED_ORIGINS = [ENV.public_url]

ASSAY_MODE = ENV.mode
ASSAY_HOME = ENV.home
ASSAY_STORAGE = ENV.storage
ASSAY_URL = ENV.public_url
ASSAY_CALLBACK_URL = ENV.callback_url
RAY_ADDRESS = ENV.ray_address
RAY_AUTH_TOKEN = ENV.ray_token
REDIS_URL = ENV.redis_url

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "csp",
    "channels",
    "controlplane",
    "controlplane.accounts",
    "controlplane.banks",
    "controlplane.runs",
    "controlplane.telemetry",
    "controlplane.episodes",
    "controlplane.checkpoints",
    "controlplane.evals",
    "controlplane.cluster",
    "controlplane.alerts",
    "controlplane.api",
]

MIDDLEWARE = [
    "controlplane.accounts.request_id.request_id_middleware",
    # What answers a request by itself, a problem among it, comes below those that add headers.
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "controlplane.static.StaticFilesMiddleware",
    "csp.middleware.CSPMiddleware",
    "controlplane.api.middleware.problem_middleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "controlplane.accounts.signed_out.signed_out_middleware",
    "controlplane.page_errors.page_error_middleware",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [CHECKOUT / "frontend" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "controlplane.context.page",
            ]
        },
    }
]


STATEMENT_MS = 30_000


def database(url: str, pool: int) -> dict:
    """Django's form of a libpq URL. A pool only where one process serves many requests: prefork workers keep one connection each."""
    given = conninfo_to_dict(url)
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    options = {key: value for key, value in given.items() if key not in names}
    if pool:
        # Whatever a stranger asks for, no query of a page may hold a connection longer.
        options.setdefault("options", f"-c statement_timeout={STATEMENT_MS}")
        options["pool"] = {"min_size": 1, "max_size": pool, "timeout": 10}
    return {"ENGINE": "django.db.backends.postgresql", "OPTIONS": options, **{names[key]: given[key] for key in names if key in given}}


# Connections never outlive a request: under ASGI each one may run in another thread, and the pool is what keeps them warm.
DATABASES = {"default": database(ENV.database_url, ENV.database_pool)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"

# The list-based RedisChannelLayer closes idle sockets after 5 s with redis-py 8 and stops near 100 sockets a process.
CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [ENV.redis_url]}}}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = ENV.home / "static"
STATICFILES_DIRS = [CHECKOUT / "frontend" / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = DEBUG
WHITENOISE_ALLOW_ALL_ORIGINS = False

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENV.https
SESSION_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "controlplane.views.csrf_failure"
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SECURE_HSTS_SECONDS = 31_536_000 if ENV.https else 0
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ENV.https else None
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "img-src": [SELF, "data:", "blob:"],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 2**20

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"request_id": {"()": "controlplane.accounts.request_id.RequestIdFilter"}},
    "formatters": {
        "line": {"()": "controlplane.logs.LineFormatter", "fmt": "%(asctime)s %(levelname)s %(name)s [%(request_id)s]: %(message)s"}
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["request_id"]}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "httpx": {"level": "WARNING"},
        # Two lines for each tick of the reconciler, every two seconds.
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
    },
}
