"""The warden: true ancestor of every embedded service. Standard library only.

It reads one JSON command a line from its standard input, whose other end the front process holds:

    {"start": {"name", "argv", "env", "cwd", "log", "stop_signal", "grace", "user"}}    start a service and keep it running
    {"remove": "/folder"}                                                              delete this folder after the end

When the pipe closes, by whatever death of the front process, it ends the services in reverse order, then every other descendant: it is a
child subreaper, so that no double fork escapes it. If it is killed itself, the kernel signals the services (PR_SET_PDEATHSIG), and the
next `up` or `down` sweeps what is left. What it knows stands in the state file, rewritten at each change.
"""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from controlplane.services import processes

BACKOFF_S = (0.5, 1, 2, 4, 8, 15, 30)
STABLE_AFTER_S = 60.0
STRAY_GRACE_S = 2.0


class Service:
    """One foreground process that is started again, ever more slowly, when it ends by itself."""

    def __init__(self, spec: dict, house: str):
        self.spec = spec
        self.name = spec["name"]
        self.house = house
        self.popen: subprocess.Popen | None = None
        self.process: processes.Process | None = None
        self.restarts = 0
        self.quick_ends = 0
        self.began = 0.0
        self.due: float | None = None
        self.last_exit: int | None = None

    def start(self) -> None:
        self.due = None
        self.began = time.monotonic()
        user = self.spec.get("user")
        try:
            with open(self.spec["log"], "ab") as log:
                self.popen = subprocess.Popen(
                    self.spec["argv"],
                    env={**self.spec["env"], "ASSAY_HOUSE": self.house, "ASSAY_SERVICE": self.name, "SPT_NOENV": "1"},
                    cwd=self.spec["cwd"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=self.tie_to_warden(os.getpid()),
                    **({"user": user[0], "group": user[1], "extra_groups": []} if user else {}),
                )
        except OSError as error:
            note(self.spec["log"], f"could not start: {error}")
            self.ended(127)
            return
        self.process = processes.identify(self.popen.pid)

    def tie_to_warden(self, warden: int):
        stop_signal = self.spec["stop_signal"]

        def before_exec():
            processes.die_with_parent(stop_signal)
            if os.getppid() != warden:
                os._exit(1)

        return before_exec

    def ended(self, exit_code: int) -> None:
        """Notes the end, ends what it left behind and sets the time of the next start."""
        self.last_exit = exit_code
        if self.popen:
            self.popen.returncode = exit_code
        self.popen = self.process = None
        # By force: told to end, a driver of a run would take it for a wish to stop.
        for process in self.family():
            processes.send(process, signal.SIGKILL)
        self.quick_ends = 0 if time.monotonic() - self.began > STABLE_AFTER_S else self.quick_ends + 1
        self.restarts += 1
        delay = BACKOFF_S[min(self.quick_ends, len(BACKOFF_S) - 1)]
        self.due = time.monotonic() + delay
        note(self.spec["log"], f"{self.name} ended with {exit_code}; starting again in {delay} s")

    def family(self) -> list[processes.Process]:
        """Descendants of the warden that carry this service's name in their environment."""
        return [p for p in processes.descendants(os.getpid()) if processes.environment(p.pid).get("ASSAY_SERVICE") == self.name]

    def stop(self) -> None:
        family = self.family()
        if self.process:
            processes.send(self.process, self.spec["stop_signal"])
            processes.wait_until_gone([self.process], self.spec["grace"])
            processes.send(self.process, signal.SIGKILL)
        processes.end([*family, *self.family()], STRAY_GRACE_S)

    def report(self) -> dict:
        state = "running" if self.process else "waiting to restart"
        pid, started = self.process or (None, None)
        history = {"restarts": self.restarts, "last_exit": self.last_exit, "log": self.spec["log"]}
        return {"state": state, "pid": pid, "started": started, **history}


class Warden:
    def __init__(self, house: str, state_file: Path):
        self.house = house
        self.state_file = state_file
        self.services: dict[str, Service] = {}
        self.remove: list[str] = []
        self.front = processes.identify(os.getppid())
        self.stopping = False
        self.unread = b""

    def run(self) -> None:
        processes.become_subreaper()
        wakeup, signalled = os.pipe()
        for end in (wakeup, signalled):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(signalled)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        selector = selectors.DefaultSelector()
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        self.write_state()
        while not self.stopping:
            for key, _ in selector.select(self.until_next_start()):
                if key.fd == wakeup:
                    os.read(wakeup, 4096)
                else:
                    self.read_commands()
            self.reap()
            self.start_due()
        self.stop_everything()

    def read_commands(self) -> None:
        chunk = os.read(sys.stdin.fileno(), 65536)
        if not chunk:
            self.stopping = True
            return
        *lines, self.unread = (self.unread + chunk).split(b"\n")
        for line in lines:
            self.obey(json.loads(line))

    def obey(self, command: dict) -> None:
        if "remove" in command:
            self.remove.append(command["remove"])
            return
        service = Service(command["start"], self.house)
        self.services[service.name] = service
        service.start()
        self.write_state()

    def reap(self) -> None:
        """Collects ended children, ours and adopted ones."""
        by_pid = {service.popen.pid: service for service in self.services.values() if service.popen}
        for pid, exit_code in processes.reap_children():
            if pid in by_pid:
                by_pid[pid].ended(exit_code)
                self.write_state()

    def start_due(self) -> None:
        for service in self.services.values():
            if service.due is not None and time.monotonic() >= service.due:
                service.start()
                self.write_state()

    def until_next_start(self) -> float | None:
        due = [service.due for service in self.services.values() if service.due is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def stop_everything(self) -> None:
        self.write_state()
        for service in reversed(self.services.values()):
            service.stop()
        processes.end(processes.descendants(os.getpid()), STRAY_GRACE_S)
        processes.reap_children()
        self.state_file.unlink(missing_ok=True)
        for folder in self.remove:
            shutil.rmtree(folder, ignore_errors=True)

    def write_state(self) -> None:
        state = {
            "house": self.house,
            "warden": processes.identify(os.getpid()),
            "front": self.front,
            "phase": "stopping" if self.stopping else "running",
            "services": {service.name: service.report() for service in self.services.values()},
        }
        partial = self.state_file.with_suffix(".partial")
        partial.write_text(json.dumps(state, indent=1))
        partial.replace(self.state_file)


def note(log: str, text: str) -> None:
    with open(log, "a") as file:
        file.write(f"[warden {time.strftime('%H:%M:%S')}] {text}\n")


if __name__ == "__main__":
    Warden(house=sys.argv[1], state_file=Path(sys.argv[2])).run()
