"""Second stage of the fork server: keeps boxes, forks a process per call. Standard library only.

It holds nothing secret and reads nothing a box has written but through `files`. When the supervisor's socket closes it
ends, and with it every process of every box, because it is process 1 of their namespace.
"""

# Pathlib would make every process that is forked here larger.
# ruff: noqa: PTH102, PTH103, PTH106, PTH112, PTH123, PTH208

import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from kifu.sandbox.ns.call import flags_of, serve_call
from kifu.sandbox.ns.files import Reader, Refused, write_tree
from kifu.sandbox.ns.kernel import MS_BIND, MS_REC, clone, mount, wipe_arguments
from kifu.sandbox.ns.launcher import report
from kifu.sandbox.ns.rootfs import build_template
from kifu.sandbox.ns.sheets import Sheets
from kifu.sandbox.wire import receive, send, write_all

Answer = tuple[dict[str, object], tuple[int, ...]]
"""What to send back, and descriptors to give away with it."""


def main(sock: socket.socket, config: dict) -> None:  # type: ignore[type-arg]
    """Serve until the supervisor is gone."""
    try:
        os.umask(0o022)
        build_template(config)
        sheets = Sheets()
        _try_overlay(sheets)
    except OSError as error:
        report(sock, "overlay", error)
        os._exit(1)
    _preload(config)
    if "wipe_argv" not in config["without"]:
        wipe_arguments("init")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    send(sock, {"ready": True, "prefix": sys.prefix})
    operations = Operations(sock, sheets)
    while True:
        message, handles = receive(sock)
        if message is None:
            os._exit(0)
        try:
            answer, given = getattr(operations, str(message["op"]))(message, handles)
        except (OSError, KeyError) as error:
            answer, given = {"error": f"{type(error).__name__}: {error}", "errno": getattr(error, "errno", None)}, ()
        try:
            send(sock, answer, given)
        except OSError as error:  # no descriptor could be given away
            send(sock, {"error": f"{type(error).__name__}: {error}", "errno": error.errno})
        for handle in (*handles, *given):
            os.close(handle)


def _preload(config: dict) -> None:  # type: ignore[type-arg]
    """Import modules for warm commands, from where they will be in a box."""
    if not config["preload"]:
        return
    for place, target in config["image"]:
        if not os.path.isdir(target):
            os.makedirs(target)
            mount(f"/i/{place}", target, flags=MS_BIND | MS_REC)
    sys.path[:0] = config["path"]
    for name in config["preload"]:
        importlib.import_module(name)


def _try_overlay(sheets: Sheets) -> None:
    """Make and write to a box once, so that a kernel that cannot is found at the start."""
    sheets.open(0, layers=[], disk=(1 << 20, 64))
    folder = sheets.ready(0)
    os.mkdir(f"{folder}/probe")
    os.rmdir(f"{folder}/probe")
    sheets.drop(0)


class Operations:
    """What the supervisor can ask for, by the name of the method."""

    def __init__(self, sock: socket.socket, sheets: Sheets) -> None:
        self._sock = sock
        self._sheets = sheets

    def open(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Make a box."""
        self._sheets.open(request["box"], layers=request["layers"], disk=request["disk"])
        return {}, ()

    def branch(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Make a box that begins as another stands."""
        depth = self._sheets.branch(request["box"], of=request["of"])
        if request["ready"]:
            self._sheets.ready(request["box"])
        return {"depth": depth}, ()

    def drop(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Give up a box."""
        self._sheets.drop(request["box"])
        return {}, ()

    def drop_layer(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Forget a layer."""
        self._sheets.drop_layer(request["layer"])
        return {}, ()

    def layer(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Make a layer of the files that come by the first descriptor."""
        folder = self._sheets.add_layer(request["layer"], size=request["bytes"], inodes=request["inodes"])
        return self._job(handles, lambda: write_tree(folder, handles[0]))

    def write(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Put the files that come by the first descriptor into a box."""
        folder = self._sheets.ready(request["box"])
        return self._job(handles, lambda: write_tree(folder, handles[0], careful=request["careful"]))

    def read(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Send files of a box by the first descriptor."""
        folder = self._sheets.ready(request["box"])
        reader = Reader(handles[0], request, careful=request["careful"])
        return self._job(handles, lambda: reader.send(folder))

    def call(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Run a command in a box."""
        folder = self._sheets.ready(request["box"])
        pid, pidfd = clone(flags_of(set(request["without"])))
        if pid == 0:
            self._sock.close()
            serve_call(request, handles, folder)
        return {"pid": pid}, (pidfd,)

    def reap(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Collect an ended process."""
        return _reap(request["pid"]), ()

    def end(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """Kill a process that nobody watches, and collect it."""
        os.kill(request["pid"], signal.SIGKILL)
        return _reap(request["pid"]), ()

    def used(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """What a box has written."""
        return {"used": self._sheets.used(request["box"])}, ()

    def state(self, request: dict, handles: list[int]) -> Answer:  # type: ignore[type-arg]
        """What is held."""
        return _state(self._sheets), ()

    def _job(self, handles: list[int], work: Callable[[], object]) -> Answer:
        """Let a child do what may take long; it reports by the second descriptor."""
        pid = os.fork()
        if pid:
            return {"pid": pid}, (os.pidfd_open(pid),)
        try:
            self._sock.close()
            result = {"done": work()}
        except Refused as error:
            result = {"refused": str(error)}
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}", "errno": getattr(error, "errno", None)}
        try:
            write_all(handles[1], json.dumps(result).encode())
        finally:
            os._exit(0)


def _reap(pid: int) -> dict[str, object]:
    """Collect an ended process; seconds of CPU and bytes at the peak of it and of all that ended in it."""
    _, status, usage = os.wait4(pid, 0)
    return {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * 1024}


def _state(sheets: Sheets) -> dict[str, object]:
    """What is held, for tests of leaks."""
    with open("/proc/self/mounts") as mounts:
        lines = mounts.read().splitlines()
    return {
        "boxes": len(sheets.boxes),
        "layers": len(sheets.layers),
        "sheets": len([line for line in lines if line.startswith("sheet ")]),
        "overlays": len([line for line in lines if line.startswith("box ")]),
        "folders": len(os.listdir("/b")),
        "handles": len(os.listdir("/proc/self/fd")),
        "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
        "time": time.monotonic(),
    }
