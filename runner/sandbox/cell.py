"""The first process of a sandbox without a container engine: makes the namespaces and the view of the file system, then runs what it is told.

Run as a program with the standard library alone (python -I -S cell.py DESCRIPTOR), so that it starts in milliseconds and shares no module with
what it guards. It talks over an inherited socket; when the other end closes, for whatever reason, the kernel ends every
process of the sandbox with it.
"""

import ctypes
import json
import os
import platform
import resource
import select
import signal
import socket
import sys

MESSAGE = 1 << 20
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, LAST_CAPABILITY = 38, 24, 63
# What a compiler or a shell needs to see of the host, read-only.
HOST_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
HOST_ETC = ("alternatives", "bash.bashrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf", "profile")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments) -> None:
    function = getattr(_libc, name)
    if function(*(value.encode() if isinstance(value, str) else value for value in arguments)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{arguments[:3]}: {os.strerror(code)}")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    call("mount", source, target, kind, ctypes.c_ulong(flags), data)


def isolate(spec: dict) -> None:
    """Enter namespaces of our own. Without root on the host a user namespace comes first; its user 0 is who started us."""
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | (0 if spec["network"] else CLONE_NEWNET)
    call("unshare", flags | (CLONE_NEWUSER if user else 0))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as target:
                target.write(text)
    else:
        os.setgroups([])


def build_view(spec: dict) -> None:
    """The sandbox's folder becomes the root; of the host it shows programs and libraries, read-only."""
    root = spec["root"]
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount(root, root, None, MS_BIND | MS_REC)
    for name in HOST_FOLDERS:
        show(f"/{name}", f"{root}/{name}")
    os.makedirs(f"{root}/etc", exist_ok=True)
    for name in HOST_ETC:
        show(f"/etc/{name}", f"{root}/etc/{name}")
    for source, target in spec["mounts"]:
        show(source, root + target)
    devices(root)
    os.makedirs(f"{root}/proc", exist_ok=True)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    os.chdir(root)
    if _libc.syscall(PIVOT_ROOT[platform.machine()], b".", b".") != 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    call("umount2", ".", MNT_DETACH)
    os.chdir("/")


def show(source: str, target: str) -> None:
    if os.path.islink(source):
        if not os.path.lexists(target):
            os.symlink(os.readlink(source), target)
        return
    if not os.path.exists(source):
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)
    # In a user namespace of ours the flags the host has set stay set.
    mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | locked_flags(target))


def locked_flags(path: str) -> int:
    flags = os.statvfs(path).f_flag
    # ST_NOSUID, ST_NODEV, ST_NOEXEC, ST_NOATIME, ST_NODIRATIME and ST_RELATIME have other values than their mount flags in part.
    table = {2: MS_NOSUID, 4: MS_NODEV, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
    return sum(mount_flag for flag, mount_flag in table.items() if flags & flag)


def devices(root: str) -> None:
    os.makedirs(f"{root}/dev/pts", exist_ok=True)
    os.makedirs(f"{root}/dev/shm", exist_ok=True)
    for name in DEVICES:
        target = f"{root}/dev/{name}"
        if not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT, 0o666))
        mount(f"/dev/{name}", target, None, MS_BIND)
    mount("devpts", f"{root}/dev/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620")
    if not os.path.lexists(f"{root}/dev/ptmx"):
        os.symlink("pts/ptmx", f"{root}/dev/ptmx")


def serve(control: socket.socket, spec: dict) -> None:
    """Run commands as they are asked for, and report how each ended on a descriptor of its own."""
    waiting: dict[int, int] = {}
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control.sendall(b'{"ready": true}')
    while True:
        readable = select.select([control, wake], [], [])[0]
        if wake in readable:
            os.read(wake, 4096)
            reap(waiting)
        if control in readable:
            data, descriptors, _, _ = socket.recv_fds(control, MESSAGE, 4)
            if not data:
                return
            request = json.loads(data)
            if "signal" in request:
                # From here it reaches every process of the sandbox but this one.
                try:
                    os.kill(-1, request["signal"])
                except ProcessLookupError:
                    pass
                control.sendall(b'{"done": true}')
            else:
                *streams, status = descriptors
                waiting[start(request, streams, spec)] = status
                for descriptor in streams:
                    os.close(descriptor)


def reap(waiting: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in waiting:
            code = os.waitstatus_to_exitcode(status)
            descriptor = waiting.pop(pid)
            try:
                os.write(descriptor, str(code if code >= 0 else 128 - code).encode())
            except BrokenPipeError:
                pass
            os.close(descriptor)


def start(request: dict, streams: list[int], spec: dict) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.setsid()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.closerange(3, 4096)
        limit(spec["limits"])
        give_up_rights(spec["uid"])
        os.chdir(request["workdir"])
        execute(request["argv"], request["env"])
    except OSError as error:
        os.write(2, f"{request['argv'][0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    finally:
        os._exit(126)


def execute(argv: list[str], env: dict[str, str]) -> None:
    """os.execvpe imports a module first, and Python's library is out of sight here."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    for folder in env["PATH"].split(":"):
        try:
            os.execve(f"{folder}/{argv[0]}", argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
    raise FileNotFoundError(2, "No such file or directory")


def give_up_rights(user: int) -> None:
    """No capability is left, and none comes back by starting a program. `user` is 0 where we were not root to begin with."""
    for capability in range(LAST_CAPABILITY + 1):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if user:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def limit(limits: dict) -> None:
    """Per process: memory and file size in bytes; per sandbox: processes."""
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits["disk"], limits["disk"]))
    resource.setrlimit(resource.RLIMIT_NPROC, (limits["pids"], limits["pids"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    # Not as an argument: the sandbox can read those.
    control = socket.socket(fileno=int(sys.argv[1]))
    spec = json.loads(control.recv(MESSAGE))
    try:
        isolate(spec)
        first = os.fork()
        if first == 0:
            build_view(spec)
            serve(control, spec)
            os._exit(0)
    except OSError as error:
        control.sendall(json.dumps({"error": str(error)}).encode())
        sys.exit(1)
    control.close()
    os.waitpid(first, 0)


if __name__ == "__main__":
    main()
