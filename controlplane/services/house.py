"""A house: one set of embedded services, and the folders it keeps.

    home       settings, secrets, logs, storage          .assay beside the checkout, or ASSAY_HOME
    data       the database cluster                      home/data; as root /var/lib/assay/<key>, where a plain user can reach it
    runtime    sockets and Ray's session files           /tmp/assay-<uid>-<key>: short, because socket paths end at 107 bytes
"""

import fcntl
import hashlib
import os
import pwd
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from controlplane.env import write_private

SOCKET_PATH_BYTES = 107
SERVICE_USER = "assay"
LOG_BYTES_KEPT = 10 * 2**20


class HouseError(RuntimeError):
    """Something the person at the terminal can mend; the text says what and how."""


class NotReady(RuntimeError):
    """A service that does not answer yet, and why."""


@dataclass(frozen=True)
class House:
    home: Path
    data: Path
    runtime: Path

    @property
    def state_file(self) -> Path:
        return self.home / "house.json"

    @property
    def environment_file(self) -> Path:
        return self.home / "environment"

    def log(self, service: str) -> Path:
        return self.home / "logs" / f"{service}.log"

    def socket(self, *parts: str) -> Path:
        """A socket path inside the runtime folder; raises HouseError when the kernel would refuse it."""
        path = self.runtime.joinpath(*parts)
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise HouseError(f"The socket path {path} is longer than {SOCKET_PATH_BYTES} bytes; choose a shorter runtime folder.")
        return path

    def prepare(self) -> None:
        """Makes the folders with the modes they need; refuses a runtime folder that somebody else made."""
        self._set_aside_data_of_a_deleted_home()
        for folder in (self.home, self.home / "logs", self.home / "storage"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data.mkdir(mode=0o711, parents=True, exist_ok=True)
        # As root the service user has to pass through to its own folder; what lies beside it is closed by itself.
        self.runtime.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)
        status = self.runtime.lstat()
        if status.st_uid != os.geteuid() or self.runtime.is_symlink() or status.st_mode & 0o022:
            raise HouseError(f"{self.runtime} belongs to somebody else or is open to writing; remove it and start again.")
        for log in (self.home / "logs").glob("*.log"):
            if log.stat().st_size > LOG_BYTES_KEPT:
                log.replace(log.with_suffix(".log.1"))

    def _set_aside_data_of_a_deleted_home(self) -> None:
        """Data that lie elsewhere outlive their home; a new home at the same place has neither their files nor their secrets."""
        if (self.home / "storage").exists() or self.home in self.data.parents or not self.data.exists():
            return
        if any(self.data.iterdir()):
            aside = self.data.with_name(f"{self.data.name}-until-{time.strftime('%Y%m%d-%H%M%S')}")
            self.data.rename(aside)
            print(f"An earlier {self.home} was deleted without its database; that is kept in {aside}, delete it when you do not need it.")

    def lock(self) -> int:
        """Takes the house for this process and its warden; raises HouseError when another `up` holds it."""
        descriptor = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise HouseError(f"Another ./assay holds {self.home}; `./assay status` shows it, `./assay down` ends it.") from None
        return descriptor

    def write_environment(self, values: dict[str, str]) -> None:
        """What `manage.py` and the command line need to reach the services of this house."""
        write_private(self.environment_file, "".join(f"{key}={value}\n" for key, value in values.items()))


def house_at(home: Path) -> House:
    key = hashlib.sha256(os.fsencode(home)).hexdigest()[:10]
    data = Path("/var/lib/assay") / key if os.geteuid() == 0 else home / "data"
    return House(home=home, data=data, runtime=Path(f"/tmp/assay-{os.geteuid()}-{key}"))


def service_user() -> tuple[int, int] | None:
    """(uid, gid) that services run under when we are root, since Postgres refuses root; None otherwise. Makes the user when absent."""
    if os.geteuid() != 0:
        return None
    for _ in range(20):
        try:
            entry = pwd.getpwnam(SERVICE_USER)
            return entry.pw_uid, entry.pw_gid
        except KeyError:
            options = ["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
            made = subprocess.run(["useradd", *options, SERVICE_USER], capture_output=True, text=True)
            time.sleep(0.1)  # another `up` may hold the lock of /etc/passwd
    raise HouseError(f"Postgres does not run as root, and the system user {SERVICE_USER!r} could not be made: {made.stderr.strip()}")


def private_folder(path: Path, owner: tuple[int, int] | None) -> Path:
    """A folder of mode 0700, owned by the service user where there is one."""
    path.mkdir(mode=0o700, exist_ok=True)
    if owner:
        os.chown(path, *owner)
    return path


def reachable_by_others(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in [path, *path.parents])
