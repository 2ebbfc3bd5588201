"""The leaf process: drives one simulator in one Java process, and answers over a socket. It stands alone: this file and py4j.

A message is a length of four bytes (big-endian) and that much JSON. A request is {"do": name, ...}; an answer is {"ok": value} or
{"error": "crash" | "oom", "message": text}. The first message is the leaf's own: {"ok": {"pid": of Java}} or an error.

It ends when its parent does, by a signal of the kernel and by the end of the socket; Java ends with it, by the same signal, by the end
of its standard input, and by being killed. A stopped process obeys the signal as well.
"""

import ctypes
import json
import logging
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError

PR_SET_PDEATHSIG = 1
# A reply of more than about 8 kB stalls for 40 ms: longer lists are fetched in parts of this many entries.
CHUNK = 150
NEVER = 10**9

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Simulator:
    """Raises RuntimeError when Java does not come up. `options` are those of Java."""

    def __init__(self, java: str, classpath: str, options: list[str]):
        command = [java, *options, "-classpath", classpath, "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
        # A session of its own: Ctrl-C at the terminal is the parent's to handle.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._words: deque[bytes] = deque(maxlen=20)
        words = threading.Thread(target=self._drain, args=(self.process.stderr, self._words), daemon=True)
        words.start()
        port, token = self.process.stdout.readline().strip(), self.process.stdout.readline().strip()
        if not token:
            code = self.process.wait()
            words.join(1.0)  # what it said last may still be in the pipe
            raise RuntimeError(f"Java ended with code {code} before it was ready{self._last_words()}")
        threading.Thread(target=self._drain, args=(self.process.stdout, deque(maxlen=1)), daemon=True).start()
        parameters = GatewayParameters(port=int(port), auth_token=token.decode(), auto_field=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self._server = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
        self._join = self._gateway.jvm.java.lang.String.join
        self._with_objects = False

    @staticmethod
    def _drain(stream, kept: deque) -> None:
        for line in stream:
            kept.append(line)

    def _last_words(self) -> str:
        told = b"".join(self._words).decode(errors="replace").strip()
        return f": {told[-400:]}" if told else ""

    # ------------------------------------------------------------ requests
    def load(self, task: str, variation: int, simplification: str, objects: bool) -> dict:
        """The state after looking around once, which is what the package's reset does. `objects`: each state lists those in sight."""
        self._with_objects = objects
        self._server.load(task, variation, simplification, False)
        return self.step("look around") | {
            "task": self._server.freeActionTaskDesc(),
            "templates": self._listed(self._server.getPossibleActions()),
        }

    def gold(self, task: str, variation: int, simplification: str) -> list[str]:
        """The oracle's actions. The simulator makes them anew at each later reset: a process that was asked this is for nothing else."""
        self._server.load(task, variation, simplification, True)
        return self._listed(self._server.getGoldActionSequence())

    def step(self, action: str) -> dict:
        """{observation, look, inventory, score (-100 to 100), done, ticks, objects}."""
        server = self._server
        observation = server.step(action)
        score = round(100 * server.getScore())
        return {
            "observation": observation,
            "look": server.freeActionLook(),
            "inventory": server.freeActionInventory(),
            "score": score,
            "done": bool(server.getCompleted()) or score < 0,
            "ticks": server.getNumMoves(),
            "objects": self._listed(server.getPossibleObjects()) if self._with_objects else [],
        }

    def valid(self) -> list[str]:
        """Every action that the simulator lists as valid here: hundreds to thousands."""
        return self._listed(self._server.getValidActionObjectCombinations())

    def ranges(self, task: str) -> dict[str, list[int]]:
        """{split: [first, last]} of the task's variations; raises ValueError where a split is no range."""
        self._server.load(task, 0, "", False)
        server = self._server
        splits = {"train": server.getVariationsTrain(), "dev": server.getVariationsDev(), "test": server.getVariationsTest()}
        return {name: self._range(name, found) for name, found in splits.items()}

    @staticmethod
    def _range(name: str, found) -> list[int]:
        first, last = found.get(0), found.get(found.size() - 1)
        if last - first + 1 != found.size():
            raise ValueError(f"split {name} is no contiguous range: {found.size()} variations from {first} to {last}")
        return [first, last]

    def kinds(self) -> list[str]:
        """Names of its tasks."""
        return self._listed(self._server.getTaskNames())

    def _listed(self, found) -> list[str]:
        count, parts = found.size(), []
        for start in range(0, count, CHUNK):
            parts += self._join("\n", found.subList(start, min(start + CHUNK, count))).split("\n")
        return parts

    # ------------------------------------------------------------
    def answer(self, request: dict) -> dict:
        """What `request` gives; an error is an answer too, after which the simulator is not to be trusted."""
        call = {name: getattr(self, name) for name in ("load", "gold", "step", "valid", "ranges", "kinds")}[request.pop("do")]
        try:
            return {"ok": call(**request)}
        except Py4JJavaError as error:
            told = str(error.java_exception)
            return {"error": "oom" if "OutOfMemoryError" in told else "crash", "message": told[:2000]}
        except (Py4JError, OSError, ValueError) as error:
            return {"error": "crash", "message": f"{error}; {self._state()}"}

    def _state(self) -> str:
        try:
            return f"Java ended with code {self.process.wait(0.5)}{self._last_words()}"
        except subprocess.TimeoutExpired:
            return "Java still runs"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Link:
    """Messages over the socket."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._stream = connection.makefile("rb")

    def receive(self) -> dict | None:
        """The next message; None when the other side is gone."""
        head = self._stream.read(4)
        body = self._stream.read(struct.unpack(">I", head)[0]) if len(head) == 4 else b""
        return json.loads(body) if body else None

    def send(self, message: dict) -> None:
        data = json.dumps(message).encode()
        self._socket.sendall(struct.pack(">I", len(data)) + data)


def main() -> None:
    """Arguments: the socket's descriptor, the parent's pid, path of Java, class path, then options of Java."""
    descriptor, parent, java, classpath, *options = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    link = Link(socket.socket(fileno=int(descriptor)))
    try:
        simulator = Simulator(java, classpath, options)
    except (RuntimeError, OSError, Py4JError) as error:
        return link.send({"error": "crash", "message": str(error)})
    requests: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, requests, simulator), daemon=True).start()
    link.send({"ok": {"pid": simulator.process.pid}})
    while True:
        link.send(simulator.answer(requests.get()))


def _read(link: Link, requests: queue.SimpleQueue, simulator: Simulator) -> None:
    # In a thread of its own, so that the end of the other side is seen while a call into Java hangs.
    try:
        while request := link.receive():
            requests.put(request)
    finally:
        simulator.end()
        os._exit(0)


if __name__ == "__main__":
    main()
