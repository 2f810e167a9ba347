"""The log of side effects: append-only JSON lines, chained by digest, written before and after every action.

One file serves one run and has one writer. It holds many chains, one per episode; their lines interleave. A line is
canonical JSON with these fields::

    content   what happened: chain, seq, previous, phase, kind, tool, arguments, facts. A function of the episode alone.
    digest    SHA-256 of the content. ``previous`` is the digest of the chain's line before, so the digest of a chain's
              last line, its head, names the whole episode; it goes into the trajectory.
    measured  times and sizes that differ from run to run.
    follows   seal of the line before in the file.
    seal      SHA-256 of digest, follows and measured: the seal of the last line names the whole file.
    mac       HMAC of the seal under a key that is replaced by its own digest after every line, or null. Whoever takes
              over the machine later holds only the present key and cannot rewrite what is already there.

A child chain begins with its parent's head as ``previous``. A cut tail leaves a shorter file that is sound in itself:
it is found where the heads noted in records and in ``run.json`` are compared, see `check_effects`.
"""

import hashlib
import hmac
import json
import os
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kifu.errors import ArgumentError, StorageError
from kifu.records import GENESIS, Json, canonical
from kifu.records.files import fsync_folder, make_folder, storing

EFFECTS = "effects.jsonl"
"""Name of the log in a run folder."""
ISOLATION = "isolation"
"""Fact of a line: ``none`` marks every line of a sandbox without isolation."""
LONG_TEXT = 4096
"""Characters of a text that stand in the log; of a longer one stand its beginning, its length and its digest."""
_KEPT = 256


class Phase(StrEnum):
    """Which part of an action a line is. A new member is a change of format."""

    BEGIN = "begin"
    """Written before the action; without an end the action was interrupted."""
    END = "end"
    """Written after it; ``of`` in its facts is the digest of its beginning."""
    NOTE = "note"
    """Something that takes no time: a refusal, a snapshot, a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectHead:
    """Names a chain up to one of its lines."""

    chain: str
    digest: str
    count: int
    """Lines up to it, those of the parent not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An action that has begun."""

    digest: str
    """Of its first line."""
    kind: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardKey:
    """A key and how often it was replaced. Hand the first one to the auditor and keep no copy."""

    key: bytes = field(repr=False)
    index: int = 0
    """Lines it has sealed; the file it opens must hold at least as many."""

    def __post_init__(self) -> None:
        if len(self.key) != 32 or self.index < 0:
            raise ArgumentError(
                f"effect key: {len(self.key)} bytes at index {self.index}, expected 32 bytes at 0 or up"
            )

    def next(self) -> "ForwardKey":
        """The key of the line after; the way back is a preimage of SHA-256."""
        return ForwardKey(key=hashlib.sha256(b"kifu effect key" + self.key).digest(), index=self.index + 1)

    def mac(self, seal: str) -> str:
        """HMAC-SHA-256 of a seal."""
        return hmac.new(self.key, seal.encode(), hashlib.sha256).hexdigest()


def seal_of(*, digest: str, follows: str, measured: bytes) -> str:
    """Seal of a line; ``measured`` as canonical JSON."""
    return hashlib.sha256(b"\n".join((digest.encode(), follows.encode(), measured))).hexdigest()


class EffectFile:
    """The file of a run and its only writer. Every line has reached the kernel when its call returns.

    Args:
        path: the file, created with its folder when missing. An unfinished last line is cut off.
        key: of the next line, or an older one; None writes no ``mac``.
        durable: make every line durable before its action; otherwise `flush` makes them so.
    """

    def __init__(self, path: Path, *, key: ForwardKey | None = None, durable: bool = False) -> None:
        make_folder(path.parent)
        self.path = path
        self._durable = durable
        self._lock = threading.Lock()
        with storing("the effect log", path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._closing = weakref.finalize(self, os.close, self._handle)
            data = path.read_bytes()
            self._size = data.rfind(b"\n") + 1
            os.ftruncate(self._handle, self._size)
            fsync_folder(path.parent)
        whole = data[: self._size].splitlines()
        self.count = len(whole)
        """Lines in the file."""
        self.seal = _seal_in(whole[-1], path) if whole else GENESIS
        """Seal of the last line: the head of the file."""
        self._key = None if key is None else _advanced(key, self.count, path)
        self._named = {_chain_in(line, path) for line in whole}

    @property
    def key(self) -> ForwardKey | None:
        """The key of the next line, for whoever goes on with this file later."""
        return self._key

    def chain(self, name: str) -> "EffectLog":
        """Begin a chain.

        Raises:
            ArgumentError: the file has one of that name.
        """
        return EffectLog(self, name, parent=None)

    def fresh(self, name: str, *, parent: EffectHead | None = None) -> "EffectLog":
        """Begin a chain of that name, or of the name with a number where there is one already.

        Args:
            name: of the episode; one that is attempted again after an interruption gets a chain of its own.
            parent: where it leaves another chain.
        """
        with self._lock:
            chosen, number = name, 2
            while chosen in self._named:
                chosen, number = f"{name}~{number}", number + 1
        return EffectLog(self, chosen, parent=parent)

    def claim(self, name: str) -> None:
        """Take a name for a chain."""
        with self._lock:
            if not name or name in self._named:
                raise ArgumentError(f"{self.path}: chain {name!r} exists already; name every episode once")
            self._named.add(name)

    def write(self, content: bytes, digest: str, measured: Mapping[str, float]) -> None:
        """Add a line; on a full disk the file stays as it was."""
        numbers = canonical(dict(measured))
        with self._lock:
            if self._handle < 0:
                raise StorageError(f"{self.path}: the effect log is closed")
            follows = self.seal
            seal = seal_of(digest=digest, follows=follows, measured=numbers)
            mac = b"null" if self._key is None else f'"{self._key.mac(seal)}"'.encode()
            line = b'{"content":%b,"digest":"%b","follows":"%b","mac":%b,"measured":%b,"seal":"%b"}\n' % (
                content,
                digest.encode(),
                follows.encode(),
                mac,
                numbers,
                seal.encode(),
            )
            with storing("a line of the effect log", self.path):
                try:
                    _write_all(self._handle, line)
                    if self._durable:
                        os.fdatasync(self._handle)
                except OSError:
                    os.ftruncate(self._handle, self._size)
                    raise
            self._size += len(line)
            self.count += 1
            self.seal = seal
            self._key = None if self._key is None else self._key.next()

    def flush(self) -> None:
        """Make every line durable."""
        with self._lock, storing("the effect log", self.path):
            if self._handle >= 0:
                os.fdatasync(self._handle)

    def close(self) -> None:
        """Make every line durable and give the file back; closing twice is fine."""
        self.flush()
        with self._lock:
            if self._handle >= 0:
                self._closing()
                self._handle = -1


class EffectLog:
    """The chain of one episode. Its actions may overlap; its lines stand in the order they were written."""

    def __init__(self, file: EffectFile, name: str, *, parent: EffectHead | None) -> None:
        file.claim(name)
        self._file = file
        self._name = name
        self._parent = parent
        self._lock = threading.Lock()
        self._digest = GENESIS if parent is None else parent.digest
        self._count = 0
        self._children = 0

    @property
    def head(self) -> EffectHead:
        """The last line so far; of a chain without lines the parent's."""
        with self._lock:
            return EffectHead(chain=self._name, digest=self._digest, count=self._count)

    def begin(
        self,
        kind: str,
        *,
        tool: str = "",
        arguments: Mapping[str, Json] | None = None,
        facts: Mapping[str, Json] | None = None,
    ) -> Pending:
        """Write down what is about to happen, before it does.

        Args:
            kind: what sort of action, e.g. ``exec``, ``write``, ``call``.
            tool: name of the tool.
            arguments: as they were asked for, long texts shortened here.
            facts: what else determines it: back-end, guarantees, digest of the policy. Nothing measured.
        """
        digest = self._write(Phase.BEGIN, kind, tool=tool, arguments=arguments, facts=facts, measured=None)
        return Pending(digest=digest, kind=kind, tool=tool)

    def end(
        self,
        pending: Pending,
        *,
        reason: str,
        facts: Mapping[str, Json] | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> EffectHead:
        """Write down what came of it.

        Args:
            pending: what `begin` returned.
            reason: how it ended, e.g. ``exit``, ``timeout``, ``denied``.
            facts: return code, digests and sizes of outputs, changed paths. Nothing measured.
            measured: seconds, bytes at the peak.
        """
        whole: dict[str, Json] = {**(facts or {}), "of": pending.digest, "reason": reason}
        self._write(Phase.END, pending.kind, tool=pending.tool, arguments=None, facts=whole, measured=measured)
        return self.head

    def note(
        self,
        kind: str,
        *,
        tool: str = "",
        arguments: Mapping[str, Json] | None = None,
        facts: Mapping[str, Json] | None = None,
    ) -> EffectHead:
        """Write down something that is over at once: a refused call, a snapshot, an export, a verdict."""
        self._write(Phase.NOTE, kind, tool=tool, arguments=arguments, facts=facts, measured=None)
        return self.head

    def child(self, name: str | None = None, *, at: EffectHead | None = None) -> "EffectLog":
        """Begin the chain of a branch.

        Args:
            name: of the chain; derived from this one's when None.
            at: where it leaves, as this chain's head was then; the present head when None.
        """
        leaves = at or self.head
        if leaves.chain != self._name:
            raise ArgumentError(f"effect chain {self._name}: a child cannot leave from chain {leaves.chain}")
        with self._lock:
            self._children += 1
            derived = f"{self._name}/{self._children}"
        return EffectLog(self._file, name or derived, parent=leaves)

    def flush(self) -> None:
        """Make every line of the file durable."""
        self._file.flush()

    def _write(
        self,
        phase: Phase,
        kind: str,
        *,
        tool: str,
        arguments: Mapping[str, Json] | None,
        facts: Mapping[str, Json] | None,
        measured: Mapping[str, float] | None,
    ) -> str:
        with self._lock:
            content: dict[str, Json] = {
                "chain": self._name,
                "seq": self._count,
                "previous": self._digest,
                "phase": phase,
                "kind": kind,
                "tool": tool,
                "arguments": shortened(dict(arguments or {})),
                "facts": shortened(dict(facts or {})),
            }
            if self._count == 0 and self._parent is not None:
                content["parent"] = {"chain": self._parent.chain, "count": self._parent.count}
            text = canonical(content)
            digest = hashlib.sha256(text).hexdigest()
            self._file.write(text, digest, {"time": round(time.time(), 6), **(measured or {})})
            self._digest = digest
            self._count += 1
            return digest


def shortened(value: Json) -> Json:
    """The same value with long texts replaced by their beginning, length and digest.

    >>> shortened({"a": "short"})
    {'a': 'short'}
    """
    if isinstance(value, str) and len(value) > LONG_TEXT:
        digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        return {"begins": value[:_KEPT], "characters": len(value), "sha256": digest}
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, dict):
        return {str(key): shortened(item) for key, item in value.items()}
    return value


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _advanced(key: ForwardKey, count: int, path: Path) -> ForwardKey:
    if key.index > count:
        raise StorageError(
            f"{path}: holds {count} lines, its key has sealed {key.index}: the tail was cut off; restore it from a copy"
        )
    while key.index < count:
        key = key.next()
    return key


def _parsed(line: bytes, path: Path) -> dict[str, Json]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("content"), dict):
        raise StorageError(
            f"{path}: found the line {line[:60]!r}, which is no line of an effect log; move the file away"
        )
    return found


def _seal_in(line: bytes, path: Path) -> str:
    return str(_parsed(line, path).get("seal"))


def _chain_in(line: bytes, path: Path) -> str:
    content = _parsed(line, path)["content"]
    assert isinstance(content, dict)
    return str(content.get("chain"))
