"""First stage of the fork server: leaves the host behind, then becomes the second stage. Standard library only.

It runs once per fork server, as whoever starts it:

1. As root it binds the folders of the image where they are wanted and then becomes an unused user, because the kernel
   exempts user 0 from the limit of processes. Anybody else, and a root that can be nobody else, binds them after the
   next step.
2. New user, mount, process, network, IPC, host-name and cgroup namespaces.
3. A child becomes process 1 of the new process namespace: when it dies the kernel ends every process of every box. It
   makes a memory file system its root, in which nothing of the host is left but the image, and starts the second stage.
4. The parent stays as a watch: when the supervisor is gone, it ends the child.

Failures go to the supervisor's socket alone, with the step and the error number.
"""

# Pathlib would make every process that is forked here larger.
# ruff: noqa: PTH102, PTH103, PTH112, PTH123, PTH211

import json
import os
import select
import signal
import socket

from kifu.sandbox.ns.kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    map_ids,
    mount,
    pivot_into,
    prctl,
    unshare,
)

DEVICES = ("null", "zero", "full", "random", "urandom")
FOLDERS = ("i", "b", "l", "t", "r", "p", "dev", "proc", "empty")
"""Of the fork server's root: image, boxes, layers, template, the root of a call, static files of /proc."""
_STAGING = ("/mnt", "/media", "/srv", "/opt", "/tmp")


class Step:
    """Where the launcher is, for the message when it fails."""

    def __init__(self) -> None:
        self.name = "start"


def main(sock: socket.socket, config: dict) -> None:  # type: ignore[type-arg]
    """Become the fork server, or report why not."""
    step = Step()
    try:
        _launch(sock, config, step)
    except OSError as error:
        report(sock, step.name, error)
    os._exit(1)


def report(sock: socket.socket, step: str, error: OSError) -> None:
    """Tell the supervisor what failed."""
    body = json.dumps({"error": {"step": step, "errno": error.errno, "text": str(error)}}).encode()
    sock.sendall(len(body).to_bytes(4, "big") + body)


def _launch(sock: socket.socket, config: dict, step: Step) -> None:  # type: ignore[type-arg]
    off = set(config["without"])
    staging = _staging_folder(config["folders"])
    is_root = os.getuid() == 0 and _can_become(config["uid"])
    if is_root:
        step.name = "mount namespace"
        unshare(CLONE_NEWNS)
        step.name = "image"
        _stage(staging, config["folders"])
    if is_root and "uid_drop" not in off:
        step.name = "become an unused user"
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
        prctl(PR_SET_DUMPABLE, 1)  # else /proc/self/uid_map belongs to root
    outside = os.getuid(), os.getgid()
    step.name = "user namespace"
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    map_ids(inside=0, outside=outside)
    step.name = "namespaces"
    unshare(
        CLONE_NEWPID
        | CLONE_NEWUTS
        | CLONE_NEWCGROUP
        | (0 if "net_ns" in off else CLONE_NEWNET)
        | (0 if "ipc_ns" in off else CLONE_NEWIPC)
    )
    if not is_root:
        step.name = "image"
        _stage(staging, config["folders"])
    pid = os.fork()
    if pid == 0:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            _become(sock, config, staging=staging, step=step)
        except OSError as error:
            report(sock, step.name, error)
        os._exit(1)
    sock.close()
    _watch(config["supervisor"], pid)


def _can_become(uid: int) -> bool:
    """Whether this root may be another user: not so in a container or namespace that maps too few."""
    with open("/proc/self/setgroups") as allowed:
        if allowed.read().strip() != "allow":
            return False
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as ranges:
            spans = [[int(word) for word in line.split()] for line in ranges]
        if not any(first <= uid < first + count for first, _, count in spans):
            return False
    return True


def _staging_folder(folders: list[str]) -> str:
    for candidate in _STAGING:
        if os.path.isdir(candidate) and not any(f"{folder}/".startswith(f"{candidate}/") for folder in folders):
            return candidate
    raise OSError(2, f"none of {', '.join(_STAGING)} is free to be covered by the sandbox's own view")


def _stage(staging: str, folders: list[str]) -> None:
    """Bind the image's folders under neutral names, and make room for the new root."""
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    mount("stage", staging, kind="tmpfs", flags=MS_NOSUID | MS_NODEV, options="size=64k,nr_inodes=4096,mode=755")
    os.mkdir(f"{staging}/s")
    for place, folder in enumerate(folders):
        os.mkdir(f"{staging}/{place}")
        mount(folder, f"{staging}/{place}", flags=MS_BIND | MS_REC)


def _become(sock: socket.socket, config: dict, *, staging: str, step: Step) -> None:  # type: ignore[type-arg]
    """Make the new root and replace this program by the second stage."""
    root = f"{staging}/s"
    step.name = "memory file system"
    options = f"size={config['state_bytes']},nr_inodes={config['state_inodes']},mode=755"
    mount("state", root, kind="tmpfs", flags=MS_NOSUID | MS_NODEV, options=options)
    for folder in FOLDERS:
        os.mkdir(f"{root}/{folder}")
    for place in range(len(config["folders"])):
        os.mkdir(f"{root}/i/{place}")
        mount(f"{staging}/{place}", f"{root}/i/{place}", flags=MS_BIND | MS_REC)
    for name in DEVICES:
        os.close(os.open(f"{root}/dev/{name}", os.O_CREAT | os.O_WRONLY))
        mount(f"/dev/{name}", f"{root}/dev/{name}", flags=MS_BIND)
    step.name = "interpreter"
    for place, target in config["interpreter_folders"]:
        os.makedirs(f"{root}{target}", exist_ok=True)
        mount(f"{staging}/{place}", f"{root}{target}", flags=MS_BIND | MS_REC)
    for name, target in config["links"]:
        os.symlink(target, f"{root}/{name}")
    _loader_cache(root)
    step.name = "proc"
    mount("proc", f"{root}/proc", kind="proc", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if "private_root" in config["without"]:
        os.mkdir(f"{root}/host")
        mount("/", f"{root}/host", flags=MS_BIND | MS_REC)
    step.name = "pivot_root"
    pivot_into(root)
    step.name = "second stage"
    sock.set_inheritable(True)
    os.execve(config["interpreter"], [config["interpreter"], "-I", "-S", "-c", config["boot"], str(sock.fileno())], {})


def _loader_cache(root: str) -> None:
    """The dynamic loader's index, for the interpreter here and for the boxes."""
    os.mkdir(f"{root}/etc")
    try:
        source = os.open("/etc/ld.so.cache", os.O_RDONLY)
    except FileNotFoundError:
        return
    target = os.open(f"{root}/etc/ld.so.cache", os.O_CREAT | os.O_WRONLY, 0o644)
    while data := os.read(source, 1 << 16):
        os.write(target, data)
    os.close(source)
    os.close(target)


def _watch(supervisor: int, child: int) -> None:
    """Wait for the end of the child or of the supervisor, whichever comes first; then both are over."""
    own = os.pidfd_open(child)
    poll = select.poll()
    poll.register(own, select.POLLIN)
    try:
        poll.register(os.pidfd_open(supervisor), select.POLLIN)
        is_orphan = os.getppid() != supervisor
    except ProcessLookupError:
        is_orphan = True
    if not is_orphan:
        poll.poll()
    signal.pidfd_send_signal(own, signal.SIGKILL)
    os.waitpid(child, 0)
    os._exit(0)
