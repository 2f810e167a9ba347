"""The `ns` back-end: Linux namespaces, overlays and a system-call filter; the same as root and as anybody else."""

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kifu.errors import ArgumentError, SandboxFailure
from kifu.sandbox.contract import WORK, BoxPolicy, Mount, Proof
from kifu.sandbox.ns.box import NsBox, send_tree
from kifu.sandbox.ns.filter import ARCHES
from kifu.sandbox.ns.server import ForkServer, ServerSpec, StartError
from kifu.sandbox.remedies import remedy_of
from kifu.sandbox.selftest import SELF_TEST, run_self_test
from kifu.sandbox.tree import Tree, path_problem

PROTECTIONS = frozenset(
    {
        "uid_drop", "private_root", "wipe_argv", "net_ns", "ipc_ns", "pid_ns", "uts_ns", "read_only_root", "tmp_quota",
        "disk_quota", "static_proc", "undumpable", "limit_memory", "limit_processes", "limit_cpu", "limit_file",
        "limit_open_files", "capabilities", "no_new_privs", "seccomp", "close_fds", "clean_env", "memory_watch",
        "wall_clock", "output_limit", "safe_paths", "no_follow",
    }
)  # fmt: skip
"""What the attack suite can leave out, one by one, to see that an attack then succeeds."""

_TAKEN = frozenset({"box", "proc", "dev", "tmp", "etc", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt"})


class NsBackend:
    """Boxes on this machine's kernel. One fork server per set of mounts, started when first needed.

    Args:
        slot: fork servers that root starts in different slots run as different users; give verifiers another than
            agents.
        interpreter: Python 3.11 or later for the fork server; empty for this process's own.
        preload: modules that warm commands find already imported.
        path: folders they come from, by their name in a box.
        mounts: shown in every box, before those of its policy; where preloaded modules come from.
        links: name at the root of every box to a folder below the box, e.g. ``{"app": "app"}`` for a ``/app`` that is
            ``/box/app``; for programs that know only fixed places.
        layer_cache_bytes: of base trees kept in memory after their last box is gone.
        without: names from `PROTECTIONS` to leave out. For controls of tests alone: what is left out is not proved, so
            a policy that requires it refuses this back-end.
    """

    def __init__(
        self,
        *,
        slot: int = 0,
        interpreter: str = "",
        preload: Iterable[str] = (),
        path: Iterable[str] = (),
        mounts: Iterable[Mount] = (),
        links: Mapping[str, str] | None = None,
        layer_cache_bytes: int = 1 << 30,
        without: frozenset[str] = frozenset(),
    ) -> None:
        if without - PROTECTIONS:
            raise ArgumentError(f"without: {sorted(without - PROTECTIONS)} are none of {sorted(PROTECTIONS)}")
        if not 0 <= slot < 1000:
            raise ArgumentError(f"slot: {slot}, expected 0 to 999")
        for name, folder in (links or {}).items():
            if "/" in name or name in _TAKEN or path_problem(name) or path_problem(folder):
                raise ArgumentError(f"links: {name!r} to {folder!r}; expected a name that no box has, and a plain path")
        self._spec = ServerSpec(
            slot=slot,
            links=tuple((name, f"{WORK}/{folder}") for name, folder in (links or {}).items()),
            interpreter=interpreter,
            preload=tuple(preload),
            path=tuple(path),
            mounts=tuple(mounts),
            without=without,
        )
        self._cache_bytes = layer_cache_bytes
        self._lock = threading.Lock()
        self._servers: dict[tuple[Mount, ...], tuple[ForkServer, LayerCache]] = {}
        self._proof: Proof | None = None

    @property
    def name(self) -> str:
        """For records."""
        return "ns"

    def prove(self) -> Proof:
        """Attack a box; the answer is kept as long as the back-end lives."""
        if self._proof is None:
            proof = self._prove()
            if any(server.is_alive for server, _ in self._servers.values()) or proof.problem:
                self._proof = proof
            return proof
        return self._proof

    def open(self, policy: BoxPolicy) -> NsBox:
        """Make a box on the policy's files; the first one on them copies them into memory."""
        server, _ = self._server(policy.mounts)
        try:
            return self._open(policy)
        except SandboxFailure:
            if server.is_alive:
                raise
            return self._open(policy)  # it was lost since its last box; a new one starts

    def _open(self, policy: BoxPolicy) -> NsBox:
        server, cache = self._server(policy.mounts)
        layers = [cache.layer(policy.base)] if policy.base.entries else []
        number = server.number()
        without = self._spec.without
        disk = None if "disk_quota" in without else (policy.limits.disk_bytes, policy.limits.inodes)
        server.ask({"op": "open", "box": number, "layers": layers, "disk": disk})
        return NsBox(server, number, policy=policy, without=without)

    def state(self) -> list[dict[str, object]]:
        """What each fork server holds: boxes, sheets, mounts, descriptors, processes."""
        return [server.ask({"op": "state"})[0] for server, _ in self._servers.values() if server.is_alive]

    def pids(self) -> list[int]:
        """Processes of the fork servers, as seen here."""
        return [server.pid for server, _ in self._servers.values()]

    def close(self) -> None:
        """End every fork server, and with it every process of every box."""
        with self._lock:
            for server, _ in self._servers.values():
                server.close()
            self._servers.clear()

    def _server(self, mounts: tuple[Mount, ...]) -> "tuple[ForkServer, LayerCache]":
        with self._lock:
            found = self._servers.get(mounts)
            if found is not None and found[0].is_alive:
                return found
            if found is not None:
                found[0].close()
            spec = replace(self._spec, mounts=(*self._spec.mounts, *mounts))
            server = ForkServer(spec)
            made = server, LayerCache(server, self._cache_bytes)
            self._servers[mounts] = made
            return made

    def _prove(self) -> Proof:
        obstacle = _obstacle()
        if obstacle:
            problem = f"stopped at `{obstacle[0]}`: {obstacle[1]}"
            return Proof(backend=self.name, problem=problem, remedy=remedy_of(obstacle[0], None))
        try:
            box = self.open(BoxPolicy(base=Tree(), limits=SELF_TEST))
        except StartError as error:
            remedy = remedy_of(error.step, error.errno)
            problem = f"stopped at `{error.step}`: {error.text}"
            return Proof(backend=self.name, errno=error.errno, problem=problem, remedy=remedy)
        try:
            return run_self_test(self.name, box)
        finally:
            box.close()


def _obstacle() -> tuple[str, str] | None:
    """What no attempt can get over: the step's name and what was found."""
    if sys.platform != "linux":
        return "platform", f"this is {sys.platform}"
    if os.uname().machine not in ARCHES:
        return "architecture", f"this is {os.uname().machine}"
    return None


class LayerCache:
    """Base trees a fork server holds, by digest; the one not used for longest goes first."""

    def __init__(self, server: ForkServer, limit_bytes: int) -> None:
        self._server = server
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def layer(self, tree: Tree) -> int:
        """Number of the layer that holds a tree, made when there is none."""
        with self._lock:
            if tree.digest in self._held:
                self._held.move_to_end(tree.digest)
                return self._held[tree.digest][0]
            number = self._server.number()
            pages = sum((len(item.data) + 4095) // 4096 + 2 for item in tree.entries)
            size = (pages + 64) * 4096
            inodes = sum(item.path.count("/") + 1 for item in tree.entries) + 64
            request = {"op": "layer", "layer": number, "bytes": size, "inodes": inodes}
            try:
                send_tree(self._server, request, tree)
            except BaseException:
                if self._server.is_alive:
                    self._server.ask({"op": "drop_layer", "layer": number})
                raise
            self._held[tree.digest] = number, size
            while len(self._held) > 1 and sum(held for _, held in self._held.values()) > self._limit_bytes:
                _, (oldest, _) = self._held.popitem(last=False)
                self._server.ask({"op": "drop_layer", "layer": oldest})
            return number
