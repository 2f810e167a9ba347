"""Choosing a back-end: the first on the experiment's list whose proved guarantees cover what the policy requires."""

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kifu.errors import SandboxFailure, UsageError, nearest
from kifu.sandbox.bwrap import BwrapBackend
from kifu.sandbox.contract import Backend, Proof, SandboxUnavailable
from kifu.sandbox.effects import EffectLog
from kifu.sandbox.host import UNSAFE, HostBackend
from kifu.sandbox.ns.backend import NsBackend
from kifu.sandbox.policy import Policy
from kifu.sandbox.sandbox import Sandbox

BACKENDS: dict[str, Callable[[], Backend]] = {"ns": NsBackend, "bwrap": BwrapBackend}
"""Known by name. A back-end without isolation is not among them: see `open_sandbox`."""

_shared: dict[tuple[int, str], Backend] = {}
_lock = threading.Lock()


def shared_backend(name: str) -> Backend:
    """This process's back-end of a name, started once and closed at exit."""
    if name not in BACKENDS:
        raise UsageError(f"no sandbox back-end `{name}`; {nearest(name, [*BACKENDS, UNSAFE])}")
    with _lock:
        key = os.getpid(), name
        if key not in _shared:
            _shared[key] = BACKENDS[name]()
        return _shared[key]


def close_shared() -> None:
    """Close the back-ends of this process."""
    with _lock:
        for key in [key for key in _shared if key[0] == os.getpid()]:
            _shared.pop(key).close()


atexit.register(close_shared)


def open_sandbox(
    policy: Policy,
    *,
    backends: Sequence[str | Backend] = ("ns",),
    log: EffectLog | None = None,
    accept_no_isolation: bool = False,
) -> Sandbox:
    """Open a box by the first back-end that proves everything ``policy.require`` names.

    Args:
        policy: files, tools, limits, required guarantees.
        backends: names or back-ends, in the order to try them.
        log: the episode's chain of effects.
        accept_no_isolation: let the list name ``unsafe-host``, which runs commands as the caller, on the caller's
            files. It proves nothing, so ``policy.require`` must be empty as well, and root is refused.

    Raises:
        SandboxFailure: the source of a mount is no folder of this machine.
        SandboxUnavailable: none does; the message says for each what is missing, why, and what to do about it.
        UsageError: a back-end nobody knows, or ``unsafe-host`` without its argument.
    """
    for mount in policy.mounts:
        if not Path(mount.source).is_dir():
            raise SandboxFailure(f"mount: the source {mount.source} is no folder of this machine")
    proofs: list[Proof] = []
    for wanted in backends:
        backend = _backend(wanted, accept_no_isolation)
        proof = backend.prove()
        if not proof.missing(policy.require) and not proof.problem:
            is_isolated = not isinstance(backend, HostBackend)
            return Sandbox(backend.open(policy.box), policy=policy, proof=proof, log=log, is_isolated=is_isolated)
        proofs.append(proof)
    raise SandboxUnavailable(proofs, policy.require)


def _backend(wanted: str | Backend, accept_no_isolation: bool) -> Backend:
    if not isinstance(wanted, str):
        if isinstance(wanted, HostBackend) and not accept_no_isolation:
            raise UsageError(f"`{UNSAFE}` isolates nothing; it needs accept_no_isolation=True")
        return wanted
    if wanted != UNSAFE:
        return shared_backend(wanted)
    if not accept_no_isolation:
        raise UsageError(f"`{UNSAFE}` isolates nothing; it needs accept_no_isolation=True")
    return HostBackend()
