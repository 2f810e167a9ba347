"""Verification of an effect log from its file and what was noted outside of it."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kifu.records import GENESIS, canonical
from kifu.sandbox.effects import ISOLATION, EffectHead, ForwardKey, Phase, seal_of

_FIELDS = {"content", "digest", "follows", "mac", "measured", "seal"}
_SHOWN = 100
_EMPTY: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectReport:
    """What an effect log holds, and what is wrong with it."""

    lines: int
    problems: tuple[str, ...] = ()
    heads: Mapping[str, EffectHead] = field(default_factory=dict)
    """By chain."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Actions and notes by ``kind/tool``."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Ends by reason."""
    interrupted: tuple[str, ...] = ()
    """Actions without an end, as ``chain#seq kind/tool``: their writer died, or they were abandoned. No problem in
    themselves."""
    torn_bytes: int = 0
    """Bytes of an unfinished last line."""
    unisolated: tuple[str, ...] = ()
    """Chains of sandboxes without isolation: what ran there could change whatever the caller can, this log too."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems


def check_effects(
    path: Path,
    *,
    anchors: Iterable[EffectHead] = (),
    seal: str | None = None,
    key: ForwardKey | None = None,
) -> EffectReport:
    """Verify every line, every chain, and what was noted elsewhere.

    An edited, deleted, swapped or inserted line is found from the file alone. A file rewritten from some line on with
    all digests made anew, and a file cut short, are sound in themselves: the first is found with the key, both with
    anchors or the seal.

    Args:
        path: the file; one that is missing is empty.
        anchors: heads that trajectories name; each must be a line of its chain.
        seal: seal of a last line noted outside, e.g. in ``run.json``; the file must still contain it.
        key: the first key; then every line must carry its mac.
    """
    data = path.read_bytes() if path.exists() else b""
    whole, newline, tail = data.rpartition(b"\n")
    reading = _Reading(key=key)
    for number, line in enumerate(whole.split(b"\n") if newline else [], start=1):
        reading.take(line, number)
    for anchor in anchors:
        reading.compare(anchor)
    if seal not in (None, GENESIS) and seal not in reading.seals:
        reading.problem(
            f"seal {str(seal)[:12]} was noted as its head and is not there: lines were cut off or rewritten"
        )
    return reading.report(torn_bytes=len(tail))


class _Reading:
    def __init__(self, *, key: ForwardKey | None) -> None:
        self._key = key
        self._problems: list[str] = []
        self._lines = 0
        self._seal = GENESIS
        self._chains: dict[str, list[str]] = {}
        self._open: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._unisolated: dict[str, None] = {}
        self.seals: set[str] = set()

    def problem(self, what: str) -> None:
        if len(self._problems) < _SHOWN:
            self._problems.append(what)

    def take(self, line: bytes, number: int) -> None:
        """Check one line; where its form is lost, the chain goes on from what the next line says."""
        self._lines += 1
        where = f"line {number}"
        fields = _fields(line)
        if fields is None:
            self.problem(f"{where}: no canonical line of an effect log: it was changed")
            self._advance_key()
            return
        content, digest = fields["content"], fields["digest"]
        if digest != hashlib.sha256(canonical(content)).hexdigest():
            self.problem(f"{where}: the content does not match its digest: it was changed")
        measured = canonical(fields["measured"])
        if fields["seal"] != seal_of(digest=digest, follows=fields["follows"], measured=measured):
            self.problem(f"{where}: the seal does not match: digest, times or sizes were changed")
        if fields["follows"] != self._seal:
            self.problem(
                f"{where}: follows {fields['follows'][:12]}, expected {self._seal[:12]}: "
                "a line was deleted, moved, inserted or rewritten before it"
            )
        if self._key is not None and fields["mac"] != self._key.mac(fields["seal"]):
            self.problem(f"{where}: the mac does not match: the line was not written with the key of its place")
        self._advance_key()
        self._seal = fields["seal"]
        self.seals.add(self._seal)
        self._link(content, digest, where)

    def compare(self, anchor: EffectHead) -> None:
        """Look for a head that a record names."""
        digests = self._chains.get(anchor.chain, [])
        if anchor.count == 0:
            return
        if anchor.count > len(digests):
            self.problem(
                f"chain {anchor.chain}: holds {len(digests)} lines, its record names {anchor.count}: lines were cut off"
            )
        elif digests[anchor.count - 1] != anchor.digest:
            self.problem(f"chain {anchor.chain}: line {anchor.count} is not the one its record names: it was rewritten")

    def report(self, *, torn_bytes: int) -> EffectReport:
        heads = {
            name: EffectHead(chain=name, digest=digests[-1], count=len(digests))
            for name, digests in self._chains.items()
        }
        return EffectReport(
            lines=self._lines,
            problems=tuple(self._problems),
            heads=heads,
            counts=dict(self._counts),
            reasons=dict(self._reasons),
            interrupted=tuple(self._open.values()),
            torn_bytes=torn_bytes,
            unisolated=tuple(self._unisolated),
        )

    def _advance_key(self) -> None:
        self._key = None if self._key is None else self._key.next()

    def _link(self, content: Mapping[str, Any], digest: str, where: str) -> None:
        name, seq = content["chain"], content["seq"]
        digests = self._chains.setdefault(name, [])
        expected = digests[-1] if digests else self._origin(content, where)
        if seq != len(digests) or content["previous"] != expected:
            self.problem(
                f"{where}: number {seq} of chain {name} follows {content['previous'][:12]}, expected number "
                f"{len(digests)} after {expected[:12]}: a line of the chain was deleted, moved or inserted"
            )
        digests.append(digest)
        if content["facts"].get(ISOLATION) == "none":
            self._unisolated[name] = None
        what = f"{content['kind']}/{content['tool']}"
        if content["phase"] == Phase.END:
            if self._open.pop(str(content["facts"].get("of")), None) is None:
                self.problem(f"{where}: ends an action that never began")
            self._reasons[str(content["facts"].get("reason"))] += 1
            return
        self._counts[what] += 1
        if content["phase"] == Phase.BEGIN:
            self._open[digest] = f"{name}#{seq} {what}"

    def _origin(self, content: Mapping[str, Any], where: str) -> str:
        """What the first line of a chain must follow."""
        parent = content.get("parent")
        if parent is None:
            return GENESIS
        digests, count = self._chains.get(parent["chain"], []), parent["count"]
        if count == 0:
            return str(content["previous"])
        if count > len(digests):
            self.problem(f"{where}: leaves chain {parent['chain']} after {count} lines, it holds {len(digests)}")
            return str(content["previous"])
        return str(digests[count - 1])


def _fields(line: bytes) -> dict[str, Any] | None:
    """The fields of a line, when it has the form of one."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or set(fields) != _FIELDS or canonical(fields) != line:
        return None
    content, parent = fields["content"], None
    texts = [fields["digest"], fields["follows"], fields["seal"]]
    if not isinstance(content, dict) or not isinstance(fields["measured"], dict):
        return None
    texts += [content.get(name) for name in ("chain", "previous", "phase", "kind", "tool")]
    parent = content.get("parent", {"chain": "", "count": 0})
    sound = (
        all(isinstance(text, str) for text in texts)
        and isinstance(content.get("seq"), int)
        and isinstance(content.get("facts"), dict)
        and isinstance(parent, dict)
        and isinstance(parent.get("chain"), str)
        and isinstance(parent.get("count"), int)
    )
    return fields if sound else None
