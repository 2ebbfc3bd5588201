"""The environment of the control plane, read once and typed. Knows nothing of Django, so that the service commands use it too."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

CHECKOUT = Path(__file__).resolve().parent.parent
MODES = ("embedded", "production")


class SettingsError(ValueError):
    """A setting is missing or malformed. The text names the variable, its value and the remedy."""


@dataclass(frozen=True)
class Environment:
    """Every setting the control plane takes from outside.

    ``database_url`` is a libpq URL, ``redis_url`` a redis-py URL (``redis://`` or ``unix://``), ``ray_address`` the base of Ray's Jobs
    REST API, ``ray_token`` what that Ray asks for (empty: nothing; the variables are Ray's own), ``public_url`` the base URL that browsers reach and ``callback_url`` the one that runners reach (the same unless the nodes
    sit in a network of their own); base URLs end without a slash.
    """

    mode: str
    debug: bool
    home: Path
    storage: Path
    database_url: str
    database_pool: int
    redis_url: str
    ray_address: str
    ray_token: str
    public_url: str
    callback_url: str
    secret_key: str
    allowed_hosts: tuple[str, ...]

    @property
    def https(self) -> bool:
        return self.public_url.startswith("https://")


def home_folder(environ=os.environ) -> Path:
    """ASSAY_HOME, by default ``.assay`` beside the checkout's code."""
    return Path(environ.get("ASSAY_HOME") or CHECKOUT / ".assay").expanduser().resolve()


def read_environment(environ=os.environ) -> Environment:
    """Reads and checks the environment; raises SettingsError. In embedded mode ``environment`` in the home folder fills what is unset."""
    mode = environ.get("ASSAY_MODE", "embedded")
    if mode not in MODES:
        raise SettingsError(f"ASSAY_MODE is {mode!r}; set it to one of {', '.join(MODES)}.")
    home = home_folder(environ)
    values = {**read_environment_file(home / "environment"), **environ} if mode == "embedded" else dict(environ)
    defaults = embedded_defaults(home) if mode == "embedded" else {}

    def setting(name: str, remedy: str) -> str:
        value = values.get(name) or defaults.get(name)
        if not value:
            raise SettingsError(f"{name} is not set, and production mode starts with no default for it: {remedy}.")
        return value

    public_url = url("ASSAY_URL", setting("ASSAY_URL", "set it to the address that browsers reach, e.g. https://assay.example.org"))
    callback_url = url("ASSAY_CALLBACK_URL", values.get("ASSAY_CALLBACK_URL") or public_url)
    return Environment(
        mode=mode,
        debug=values.get("ASSAY_DEBUG", "") == "1",
        home=home,
        storage=Path(setting("ASSAY_STORAGE", "set it to a folder shared by the web process, the worker and every node")).expanduser().resolve(),
        database_url=setting("DATABASE_URL", "set it to postgresql://user:password@host:5432/assay"),
        database_pool=whole_number("ASSAY_DB_POOL", values.get("ASSAY_DB_POOL", "0")),
        redis_url=setting("REDIS_URL", "set it to redis://:password@host:6379/0"),
        ray_address=url("RAY_ADDRESS", setting("RAY_ADDRESS", "set it to the Jobs REST base of the Ray head, e.g. http://ray-head:8265")),
        ray_token=ray_token(values),
        public_url=public_url,
        callback_url=callback_url,
        secret_key=values.get("SECRET_KEY") or (embedded_secret(home) if mode == "embedded" else setting("SECRET_KEY", SECRET_REMEDY)),
        allowed_hosts=allowed_hosts(values.get("ALLOWED_HOSTS", ""), public_url, callback_url),
    )


SECRET_REMEDY = "set it to 50 or more random characters, e.g. from python -c 'import secrets; print(secrets.token_urlsafe(50))'"


def embedded_defaults(home: Path) -> dict[str, str]:
    # Addresses of a house that is not up: they let `manage.py makemigrations` load, and any use of them fails with a connection error.
    return {
        "ASSAY_STORAGE": str(home / "storage"),
        "DATABASE_URL": "postgresql://assay@127.0.0.1:1/assay",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "RAY_ADDRESS": "http://127.0.0.1:8265",
        "ASSAY_URL": "http://127.0.0.1:8000",
    }


def read_environment_file(path: Path) -> dict[str, str]:
    """KEY=VALUE lines, as ``./assay up`` writes them; an absent file is empty."""
    if not path.exists():
        return {}
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def embedded_secret(home: Path) -> str:
    """The secret of this house, made once and kept in a file that only its owner reads."""
    path = home / "secret_key"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, secrets.token_urlsafe(50))
    return path.read_text()


def write_private(path: Path, text: str) -> None:
    """Writes atomically with mode 0600 from the first byte on."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    partial.replace(path)


def url(name: str, value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{name} is {value!r}; it must be an http:// or https:// address with a host.")
    return value.rstrip("/")


def ray_token(values: dict[str, str]) -> str:
    path = values.get("RAY_AUTH_TOKEN_PATH")
    if values.get("RAY_AUTH_TOKEN") or not path:
        return values.get("RAY_AUTH_TOKEN", "")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise SettingsError(f"RAY_AUTH_TOKEN_PATH is {path!r}, which cannot be read ({error.strerror}); name the file that Ray was given.") from None


def whole_number(name: str, value: str) -> int:
    if not value.isdigit():
        raise SettingsError(f"{name} is {value!r}; it must be a whole number, 0 or more.")
    return int(value)


def allowed_hosts(value: str, *urls: str) -> tuple[str, ...]:
    """The named hosts, those of our own URLs, and loopback, where health checks come from."""
    named = [host.strip() for host in value.split(",") if host.strip()]
    return tuple(dict.fromkeys([*named, *(urlsplit(url).hostname for url in urls), "127.0.0.1", "localhost"]))
