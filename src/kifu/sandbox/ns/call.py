"""One call in a box: process 1 of its namespaces shuts every door, starts the command, waits. Standard library only."""

# Pathlib would make every process that is forked here larger.
# ruff: noqa: PTH208

import json
import os
import runpy
import signal
import sys
import traceback

from kifu.sandbox.ns.filter import assembled
from kifu.sandbox.ns.kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    drop_capabilities,
    install_filter,
    map_ids,
    prctl,
    set_hostname,
)
from kifu.sandbox.ns.rootfs import BOX_USER, enter_root, raise_loopback, set_limits
from kifu.sandbox.wire import LINK_NUMBER, write_all

_DEFAULTED = (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ)
"""What Python changes and a command expects unchanged."""
_SEPARATE = {"pid_ns": CLONE_NEWPID, "net_ns": CLONE_NEWNET, "ipc_ns": CLONE_NEWIPC, "uts_ns": CLONE_NEWUTS}


def flags_of(off: set[str]) -> int:
    """Namespaces of a call."""
    always = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP
    return always | sum(flag for name, flag in _SEPARATE.items() if name not in off)


def serve_call(request: dict, handles: list[int], box: str) -> None:  # type: ignore[type-arg]
    """Run a call to its end in the process that was cloned for it, and exit.

    Args:
        request: argv, env, cwd, limits, network, probe, warm, without.
        handles: stdin, stdout, stderr of the command, the report, which the command never gets, and, where there is a
            link, what the command writes to it.
        box: folder that shows the box.
    """
    report = handles[3]
    try:
        _confine(request, box)
        pid = _start(request, handles)
        for handle in (*handles[:3], *handles[4:]):
            os.close(handle)
        status = _await(pid)
        write_all(report, json.dumps({"status": status}).encode())
    except Exception as error:
        number = getattr(error, "errno", None)
        write_all(report, json.dumps({"error": f"{type(error).__name__}: {error}", "errno": number}).encode())
    finally:
        os._exit(0)


def _confine(request: dict, box: str) -> None:  # type: ignore[type-arg]
    off = set(request["without"])
    map_ids(inside=0 if "capabilities" in off else BOX_USER, outside=(0, 0))
    if "uts_ns" not in off:
        set_hostname("box")
    if request["network"] == "loopback":
        raise_loopback()
    enter_root(box, request, off)
    if request["cwd"]:
        os.chdir(request["cwd"])
    os.umask(0o022)
    if "undumpable" not in off:
        prctl(PR_SET_DUMPABLE, 0)
    set_limits(request["limits"], off)
    if "capabilities" not in off:
        drop_capabilities()
    if "no_new_privs" not in off:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
    if "seccomp" not in off:
        install_filter(assembled(os.uname().machine, with_inet=request["network"] == "loopback"))


def _start(request: dict, handles: list[int]) -> int:  # type: ignore[type-arg]
    if "close_fds" in request["without"]:
        os.set_inheritable(handles[3], True)
    if request["warm"] or request["probe"]:
        return _start_warm(request, handles)
    actions = [(os.POSIX_SPAWN_DUP2, handle, number) for number, handle in enumerate(handles[:3])]
    actions += [(os.POSIX_SPAWN_DUP2, handle, LINK_NUMBER) for handle in handles[4:]]
    return os.posix_spawn(
        request["argv"][0],
        request["argv"],
        request["env"],
        file_actions=actions,
        setsid=True,
        setsigmask=[],
        setsigdef=_DEFAULTED,
    )


def _start_warm(request: dict, handles: list[int]) -> int:  # type: ignore[type-arg]
    """The command is Python code this interpreter runs itself, in a child."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        prctl(PR_SET_DUMPABLE, 1)
        for number, handle in enumerate(handles[:3]):
            os.dup2(handle, number)
        _close_as_exec_does()
        for number in _DEFAULTED:
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["env"])
        code = _run_warm(request)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _close_as_exec_does() -> None:
    """What stays open here is what a program started in a box would find open."""
    for name in os.listdir("/proc/self/fd"):
        handle = int(name)
        try:
            if handle > 2 and not os.get_inheritable(handle):
                os.close(handle)
        except OSError:
            continue  # the listing's own descriptor


def _run_warm(request: dict) -> int:  # type: ignore[type-arg]
    if request["probe"]:
        sys.modules[request["probe"][0]].main(request["probe"][1:])
        return 0
    sys.argv = list(request["argv"][1:])
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code & 255 if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def _await(pid: int) -> int:
    """Reap everything until the command itself has ended; what it left behind dies with this process."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid and not os.WIFSTOPPED(status):
            return status
