"""One episode's sandbox: typed calls in a box, snapshots and branches, files in and out, all of it logged."""

import hashlib
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from kifu.errors import SandboxFailure
from kifu.records import Json
from kifu.sandbox.acting import act
from kifu.sandbox.contract import Box, Denied, Export, Guarantee, Link, Proof, Reason, Wanted
from kifu.sandbox.effects import ISOLATION, EffectLog
from kifu.sandbox.policy import CallResult, Policy
from kifu.sandbox.tools import Given, check_arguments, find_tool
from kifu.sandbox.tree import Tree


class Snapshot:
    """A box as it stood; nothing runs in it."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def branch(self) -> Box:
        """A box that begins there."""
        return self._box.branch()

    def close(self) -> None:
        """Give it up; boxes that began there stay."""
        self._box.close()


class Sandbox:
    """What `open_sandbox` returns. One call at a time; different sandboxes may run at once.

    Args:
        origin: the box at the start; kept for `reset`.
        policy: what may be called.
        proof: of the back-end.
        log: chain of this episode; None logs nothing.
        is_isolated: False for the back-end without isolation.
    """

    def __init__(
        self, origin: Box, *, policy: Policy, proof: Proof, log: EffectLog | None = None, is_isolated: bool = True
    ) -> None:
        self.policy = policy
        self.proof = proof
        self.is_isolated = is_isolated
        self.log = log
        self._origin = Snapshot(origin)
        self._box = origin.branch()
        self._lock = threading.RLock()
        self._facts: dict[str, Json] = {
            "backend": proof.backend,
            ISOLATION: "proved" if is_isolated else "none",
            "guarantees": [str(guarantee) for guarantee in sorted(proof.held)],
            "policy": policy.digest,
        }
        self._mark: dict[str, Json] = {} if is_isolated else {ISOLATION: "none"}
        if log is not None:
            log.note("open", facts=self._facts)

    @property
    def backend(self) -> str:
        """Name of the back-end, for the record."""
        return self.proof.backend

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What the back-end proved."""
        return self.proof.held

    def call(self, tool: str, arguments: Given | None = None, *, link: Link | None = None) -> CallResult:
        """Do what the policy under training asks for, if its policy allows it.

        A refusal is a result with the reason `Reason.DENIED`, an observation like any other. A sandbox that breaks
        raises `SandboxFailure`: then nothing is known about what was done.

        Args:
            tool: its name.
            arguments: of its slots.
            link: for a program that a `RunTool` starts.
        """
        mark: dict[str, Json] = self._mark if link is None else {**self._mark, "link": True}
        given = dict(arguments or {})
        with self._lock:
            try:
                found = find_tool(self.policy.tools, tool)
                values = check_arguments(found, given)
            except Denied as error:
                self._note("denied", tool=tool, arguments=_plain(given), facts={"why": str(error)})
                return CallResult(tool=tool, reason=Reason.DENIED, message=str(error))
            pending = None
            if self.log:
                pending = self.log.begin("call", tool=tool, arguments=_plain(given), facts={**mark})
            try:
                result = act(self._box, found, values=values, limits=self.policy.limits, link=link)
            except SandboxFailure:
                if self.log and pending:
                    self.log.end(pending, reason="sandbox_error", facts={**mark})
                raise
            if self.log and pending:
                facts = {**_facts_of(result), **mark}
                self.log.end(pending, reason=str(result.reason), facts=facts, measured=_measured(result))
            return result

    def put(self, tree: Tree) -> None:
        """Write files, as the environment's author and not as the policy.

        Raises:
            Denied: a path meets a link or a folder in the box.
        """
        with self._lock:
            self._note("put", facts={"tree": tree.digest, "files": len(tree.entries)})
            self._box.write(tree)

    def export(self, wanted: Wanted) -> Export:
        """Take files out: regular ones with plain names, within caps."""
        with self._lock:
            found = self._box.read(wanted)
            facts: dict[str, Json] = {"tree": found.tree.digest, "refused": found.refused_count}
            self._note("export", arguments={"patterns": list(wanted.patterns)}, facts=facts)
            return found

    def snapshot(self) -> Snapshot:
        """Keep the box as it stands."""
        with self._lock:
            self._note("snapshot")
            return Snapshot(self._box.branch())

    def reset(self, snapshot: Snapshot | None = None) -> None:
        """Go back to a snapshot; to the start when None."""
        with self._lock:
            fresh = (snapshot or self._origin).branch()
            self._box.close()
            self._box = fresh
            self._note("reset", facts={"to": "start" if snapshot is None else "snapshot"})

    def fork(self, snapshot: Snapshot | None = None, *, log: EffectLog | None = None) -> "Sandbox":
        """Another sandbox that begins as this one stands, or at a snapshot of it; its `reset` leads back there.

        Args:
            snapshot: where it begins; None for here.
            log: its chain; a child of this one's when None.
        """
        with self._lock:
            origin = snapshot.branch() if snapshot else self._box.branch()
            chain = log if log is not None or self.log is None else self.log.child()
            return Sandbox(origin, policy=self.policy, proof=self.proof, log=chain, is_isolated=self.is_isolated)

    def close(self) -> None:
        """Give the boxes up; closing twice is fine."""
        with self._lock:
            self._box.close()
            self._origin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _note(
        self,
        kind: str,
        *,
        tool: str = "",
        arguments: dict[str, Json] | None = None,
        facts: dict[str, Json] | None = None,
    ) -> None:
        if self.log is not None:
            self.log.note(kind, tool=tool, arguments=arguments, facts={**(facts or {}), **self._mark})


def _facts_of(result: CallResult) -> dict[str, Json]:
    return {
        "code": result.code,
        "signal": result.signal,
        "out_sha256": hashlib.sha256(result.out).hexdigest(),
        "err_sha256": hashlib.sha256(result.err).hexdigest(),
    }


def _measured(result: CallResult) -> dict[str, float]:
    return {
        "wall_s": round(result.wall_s, 6),
        "cpu_s": round(result.cpu_s, 6),
        "peak_bytes": result.peak_bytes,
        "total_bytes": result.total_bytes,
    }


def _plain(given: Mapping[str, object]) -> dict[str, Json]:
    """Arguments as they can be logged, whatever the policy sent."""
    return {str(name): _json(value) for name, value in given.items()}


def _json(value: object) -> Json:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return repr(value)
