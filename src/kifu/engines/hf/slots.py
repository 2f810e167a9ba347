"""Which contexts are kept where, and what a new call can reuse. No torch.

A slot holds the tokens of one context. A call continues the slot of its own context from their longest common prefix,
or begins with a copy of what a slot of its prefix group holds. Released slots stay useful as donors until they are
taken for something else.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from kifu.records import Ints, as_ints

Hidden = TypeVar("Hidden")
AT_ONCE = 512
"""Tokens compared before it is asked whether they were alike."""


@dataclass(slots=True, kw_only=True, eq=False)
class Slot(Generic[Hidden]):
    """One context's place."""

    index: int
    context: str | None = None
    """None when nobody owns what it holds."""
    group: str = ""
    token_ids: Ints = field(default_factory=lambda: as_ints([]))
    """``[T]`` what it holds or, while a call is fed, will hold."""
    fed: int = 0
    """How many of them went through the model."""
    busy: bool = False
    used_at: int = 0
    ends: dict[int, Hidden] = field(default_factory=dict)
    """Hidden state after the first n tokens, for the n where a call began to write."""

    @property
    def unowned(self) -> bool:
        """Whether it can be taken and nobody is the worse for it."""
        return self.context is None and not self.busy

    def cut(self, length: int) -> None:
        """Forget everything from position ``length``."""
        self.fed = min(self.fed, length)
        self.token_ids = self.token_ids[: self.fed]
        self.ends = {end: hidden for end, hidden in self.ends.items() if end <= self.fed}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Match(Generic[Hidden]):
    """A slot that shares a prefix with a call."""

    slot: Slot[Hidden]
    length: int


class SlotTable(Generic[Hidden]):
    """All slots of a sampler."""

    def __init__(self, num_slots: int) -> None:
        self.slots: list[Slot[Hidden]] = [Slot(index=index) for index in range(num_slots)]
        self.evictions = 0
        self._clock = 0

    def own(self, context: str, token_ids: Ints) -> Match[Hidden] | None:
        """The idle slot of this context with the longest common prefix."""
        found = [slot for slot in self.slots if slot.context == context and not slot.busy]
        return _longest(found, token_ids)

    def donors(self, group: str, token_ids: Ints) -> tuple[Match[Hidden] | None, Match[Hidden] | None]:
        """What slots of this prefix group can lend: now, of what was fed; and later, when a busy one has got there.

        Of slots that can lend equally much now, one that nobody owns comes first: it can be continued in place.
        """
        now: Match[Hidden] | None = None
        later: Match[Hidden] | None = None
        for slot in self.slots if group else ():
            if slot.group != group:
                continue
            length = common_prefix(slot.token_ids, token_ids)
            ready = min(length, slot.fed)
            if ready and (now is None or (ready, slot.unowned) > (now.length, now.slot.unowned)):
                now = Match(slot=slot, length=ready)
            if slot.busy and length > ready and (later is None or length > later.length):
                later = Match(slot=slot, length=length)
        return now, later

    @property
    def full(self) -> bool:
        """Whether every slot is busy."""
        return all(slot.busy for slot in self.slots)

    def free(self, keep: Slot[Hidden] | None = None) -> Slot[Hidden] | None:
        """Take an idle slot: one nobody owns if there is any, else the least recently used; None when all are busy.

        Args:
            keep: the last of its kind to be taken, and then with what it holds: a copy of that is wanted.
        """
        idle = [slot for slot in self.slots if not slot.busy]
        if not idle:
            return None
        chosen = min(idle, key=lambda slot: (slot.context is not None, slot is keep, slot.used_at, slot.index))
        self.evictions += chosen.context is not None
        if chosen is not keep:
            chosen.cut(0)
        chosen.context = None
        return chosen

    def occupy(self, slot: Slot[Hidden], *, context: str, group: str, token_ids: Ints) -> None:
        """Mark a slot as being fed the rest of ``token_ids``."""
        self._clock += 1
        slot.context, slot.group, slot.token_ids, slot.busy, slot.used_at = (
            context,
            group,
            token_ids,
            True,
            self._clock,
        )

    def settle(self, slot: Slot[Hidden], token_ids: Ints) -> None:
        """Mark a slot as idle, holding what was fed of ``token_ids``."""
        self._clock += 1
        slot.token_ids, slot.busy, slot.used_at = token_ids, False, self._clock
        slot.cut(slot.fed)

    def release(self, context: str) -> None:
        """Disown the slots of a context; what they hold can still be copied."""
        for slot in self.slots:
            if slot.context == context:
                slot.context = None

    def clear(self) -> None:
        """Forget everything."""
        for slot in self.slots:
            slot.cut(0)
            slot.context, slot.group = None, ""


def _longest(slots: list[Slot[Hidden]], token_ids: Ints) -> Match[Hidden] | None:
    best: Match[Hidden] | None = None
    for slot in slots:
        length = common_prefix(slot.token_ids, token_ids)
        if length and (best is None or length > best.length):
            best = Match(slot=slot, length=length)
    return best


def common_prefix(first: Ints, second: Ints) -> int:
    """Number of leading tokens two sequences share."""
    size = min(first.size, second.size)
    for start in range(0, size, AT_ONCE):
        stop = min(start + AT_ONCE, size)
        differ = np.flatnonzero(first[start:stop] != second[start:stop])
        if differ.size:
            return start + int(differ[0])
    return size
