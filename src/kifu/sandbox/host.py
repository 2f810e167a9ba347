"""No isolation at all: commands run as the caller. For a machine that is itself thrown away afterwards."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress

from kifu.errors import UsageError
from kifu.sandbox.contract import BoxPolicy, Command, Export, Proof, Ran, Reason, Wanted
from kifu.sandbox.folders import FolderFiles
from kifu.sandbox.handles import Handles
from kifu.sandbox.tree import Tree
from kifu.sandbox.watching import Sources, watch, watchable
from kifu.sandbox.wire import write_all

UNSAFE = "unsafe-host"


class HostBackend:
    """Runs commands on the host. It proves nothing, so only a policy that requires nothing takes it.

    Raises:
        UsageError: the caller is root.
    """

    def __init__(self) -> None:
        if os.geteuid() == 0:
            raise UsageError(f"`{UNSAFE}` is refused to root: what runs there could do everything; use another user")
        self._boxes: list[HostBox] = []

    @property
    def name(self) -> str:
        """For records."""
        return UNSAFE

    def prove(self) -> Proof:
        """Nothing holds."""
        return Proof(backend=self.name)

    def open(self, policy: BoxPolicy) -> "HostBox":
        """A folder with the policy's files; mounts are not made."""
        if policy.mounts:
            raise UsageError(f"`{UNSAFE}` cannot show folders elsewhere; leave `mounts` empty")
        files = FolderFiles()
        files.write(policy.base)
        box = HostBox(files)
        self._boxes.append(box)
        return box

    def close(self) -> None:
        """Delete what is left."""
        for box in self._boxes:
            box.close()


class HostBox:
    """A folder; its limits are time and output."""

    def __init__(self, files: FolderFiles) -> None:
        self._files = files
        self._lock = threading.Lock()

    def run(self, command: Command) -> Ran:
        """Run a command as the caller, in the box's folder."""
        with self._lock:
            return self._run(command)

    def branch(self) -> "HostBox":
        """A copy."""
        return HostBox(self._files.copy())

    def write(self, tree: Tree) -> None:
        """As `Box.write`."""
        self._files.write(tree)

    def read(self, wanted: Wanted) -> Export:
        """As `Box.read`."""
        return self._files.read(wanted)

    def close(self) -> None:
        """Delete the folder."""
        self._files.remove()

    def _run(self, command: Command) -> Ran:
        if command.link is not None:
            raise UsageError(f"`{UNSAFE}` starts no program with a link; run it as a process of yours instead")
        start = time.monotonic()
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self._files.path), "LANG": "C.UTF-8"}
        with Handles() as held:
            out, out_end = held.pipe()
            err, err_end = held.pipe()
            stdin = held.own(os.memfd_create("stdin", os.MFD_CLOEXEC))
            write_all(stdin, command.stdin)
            os.lseek(stdin, 0, os.SEEK_SET)
            try:
                process = subprocess.Popen(
                    list(command.argv),
                    cwd=self._files.path / command.cwd,
                    env={**env, **dict(command.env)},
                    stdin=stdin,
                    stdout=out_end,
                    stderr=err_end,
                    start_new_session=True,
                )
            except OSError as error:
                return Ran(reason=Reason.SETUP_FAILED, message=str(error))
            sources = Sources(process=watchable(process), out=out, err=err)
            held.let_go(*sources.given)
        seen = watch(sources, command.limits)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        reason = seen.broken or (Reason.EXIT if status >= 0 else Reason.SIGNAL)
        return Ran(
            reason=reason,
            code=status if reason is Reason.EXIT else None,
            signal=-status if reason is Reason.SIGNAL else None,
            out=bytes(seen.out),
            err=bytes(seen.err),
            total_bytes=seen.total_bytes,
            wall_s=time.monotonic() - start,
            peak_bytes=seen.peak_bytes,
        )
