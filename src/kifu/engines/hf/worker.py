"""The thread that runs the model for all calls together.

Every round takes in what is pending, forwards the next tokens of all calls in progress in one pass, and lets each call
whose tokens are all fed write its next token. A call joins between two rounds and leaves when it is finished; nobody
waits for another call's tool.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kifu.engines.hf.attention import Feed
from kifu.engines.hf.backend import Backend
from kifu.engines.hf.choice import choose, kept_ids, logprob_of
from kifu.engines.hf.head import ROWS_AT_ONCE, Head
from kifu.engines.hf.slots import Match, SlotTable
from kifu.engines.hf.work import Scoring, Writing
from kifu.errors import EngineFailure
from kifu.policy import Scores
from kifu.records import Ints, Sampling, as_floats, as_ints

ROWS_PER_ROUND = 1024
"""Tokens forwarded in one round at most; long prompts are fed in chunks."""
WORTH_COPYING = 8
"""Tokens by which a donor must be better than the context's own slot, and than the next best donor to be waited for."""
LINGER_S = 0.002
"""How long a round waits for calls that arrive together."""
IDLE_S = 0.05
"""How long the thread waits for work before it ends; the next call starts another (see `kifu.engines.hf.threads`)."""

Write: TypeAlias = Writing[Tensor]
Score: TypeAlias = Scoring[Tensor]
Work: TypeAlias = Write | Score
Copies: TypeAlias = dict[tuple[int, int, int], list[int]]
"""Donor, first and last position to the slots that get them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What went through the model since it was loaded."""

    positions_fed: int
    """Token positions forwarded."""
    prefix_reused: int
    """Token positions that were not, because they were kept for the context or its group."""
    evictions: int
    """Contexts whose slot was taken while somebody still owned it."""
    forwards: int
    """Rounds; one of more rows than a forward may have takes several."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Command:
    """Something to run when every call before it is finished."""

    run: Callable[[], None]
    future: Future[None]


class Worker:
    """Owns the model, its slots and the thread."""

    def __init__(self, *, backend: Backend, head: Head, num_slots: int, threads: int, about: Sampling) -> None:
        self.backend = backend
        self.head = head
        self.version = 0
        self.bitmaps: dict[str, bytes] = {}
        self._table: SlotTable[Tensor] = SlotTable(num_slots)
        self._threads = threads
        self._about = about
        self._queue: deque[Work | Command | str] = deque()
        self._waiting: list[Work] = []
        self._active: list[Work] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._fed = self._reused = self._forwards = 0

    @property
    def stats(self) -> Stats:
        """Counts so far."""
        return Stats(
            positions_fed=self._fed,
            prefix_reused=self._reused,
            evictions=self._table.evictions,
            forwards=self._forwards,
        )

    def submit(self, *items: Work | Command | str) -> None:
        """Queue calls, commands, or contexts (by name) to release."""
        with self._wake:
            if self._closed:
                raise EngineFailure("the sampler was closed; build a new engine")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kifu-hf-sampler", daemon=True)
                self._thread.start()
            self._queue.extend(items)
            self._wake.notify()

    def close(self) -> None:
        """End the thread; calls in progress fail."""
        with self._wake:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def drop(self) -> None:
        """Forget everything kept. Runs on the worker's thread, between calls."""
        self._table.clear()
        self.head.refresh()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        while True:
            with self._wake:
                if not (self._queue or self._waiting or self._active or self._closed):
                    self._wake.wait(IDLE_S)
                    if not (self._queue or self._closed):
                        self._thread = None
                        return
                if self._closed:
                    break
                size = -1
                while size != len(self._queue) and not self._active:
                    size = len(self._queue)
                    self._wake.wait(LINGER_S)
            try:
                self._take_in()
                self._admit()
                if self._active:
                    self._round()
            except Exception as cause:  # one place turns whatever escapes into the callers' failure
                self._fail(f"a forward failed: {type(cause).__name__}: {cause}", cause)
        self._fail("the sampler was closed", None)

    def _fail(self, why: str, cause: BaseException | None) -> None:
        for work in dict.fromkeys([*self._active, *self._waiting]):  # one that was being placed is in both
            error = EngineFailure(f"sampler: {why}")
            error.__cause__ = cause
            self._end(work, error=error)
        self._waiting.clear()
        self._table.clear()

    def _take_in(self) -> None:
        """Move queued items to work; a command holds back everything queued after it until it has run."""
        while True:
            with self._wake:
                if not self._queue:
                    return
                item = self._queue[0]
                if isinstance(item, Command) and (self._active or self._waiting):
                    return
                self._queue.popleft()
            if isinstance(item, str):
                self._table.release(item)
            elif isinstance(item, Command):
                _settle(item.future, item.run)
            else:
                self._waiting.append(item)

    def _admit(self) -> None:
        """Give waiting calls a slot, sharing what is kept; copies from one donor are made together."""
        copies: Copies = {}
        still: list[Work] = []
        for work in self._waiting:
            if work.future.cancelled():
                continue
            if not self._place(work, copies):
                still.append(work)
        self._waiting = still
        self._copy(copies)

    def _copy(self, copies: Copies) -> None:
        for (donor, start, stop), targets in copies.items():
            self.backend.copy(donor, targets, start=start, stop=stop)
        copies.clear()

    def _place(self, work: Work, copies: Copies) -> bool:
        if self._table.full:
            return False
        context, group, needed = _identity(work)
        token_ids = as_ints(work.token_ids)
        own, (now, later) = self._table.own(context, token_ids), self._table.donors(group, token_ids)
        held = own.length if own is not None else 0
        best = now if now is not None and now.length >= held + WORTH_COPYING else own
        at_hand = best.length if best is not None else 0
        if later is not None and min(later.length, needed) >= at_hand + WORTH_COPYING:
            return False
        slot = own.slot if own is not None else self._table.free(best.slot if best else None)
        if slot is None:
            return False
        usable, hidden = _usable(best, len(work.token_ids), needed)
        if any(slot.index == donor_index for donor_index, _, _ in copies):
            self._copy(copies)
        slot.cut(usable if best is not None and best.slot is slot else min(held, usable))
        if best is not None and best.slot is not slot and usable > slot.fed:
            copies.setdefault((best.slot.index, slot.fed, usable), []).append(slot.index)
        slot.fed = usable
        if hidden is not None:
            slot.ends[usable] = hidden
        self._reused += usable
        self._table.occupy(slot, context=context, group=group, token_ids=token_ids)
        work.slot = slot
        if isinstance(work, Writing):
            work.hidden = hidden
        self._active.append(work)
        return True

    def _round(self) -> None:
        for work in [work for work in self._active if work.future.cancelled()]:
            self._end(work)
        self._feed()
        self._write([work for work in self._active if isinstance(work, Writing) and work.hidden is not None])
        for work in [work for work in self._active if isinstance(work, Scoring) and _remaining(work) == 0]:
            self._end(work, result=_scores(work, self.head, self.bitmaps))

    def _feed(self) -> None:
        """Forward the next tokens of every call, short rests first."""
        budget, chosen = ROWS_PER_ROUND, list[tuple[Work, Feed]]()
        for work in sorted(self._active, key=_remaining):
            length = min(_remaining(work), budget)
            if length > 0 and work.slot is not None:
                start = work.slot.fed
                ids = tuple(work.token_ids[start : start + length])
                chosen.append((work, Feed(slot=work.slot.index, start=start, token_ids=ids)))
                budget -= length
        if not chosen:
            return
        hidden = self.backend.forward([feed for _, feed in chosen])
        self._forwards += 1
        self._fed += hidden.shape[0]
        at = 0
        for work, feed in chosen:
            _received(work, feed, hidden[at : at + len(feed.token_ids)])
            at += len(feed.token_ids)

    def _write(self, ready: Sequence[Write]) -> None:
        """Let every call whose tokens are all fed write what it can."""
        asked: list[tuple[Write, Ints | None, Tensor]] = []
        for work in ready:
            hidden = work.hidden
            try:
                candidates = work.candidates()
            except Exception as cause:
                self._end(work, error=_constraint_failed(work, cause))
                continue
            if work.finish is None and work.hidden is not None and hidden is not None:
                asked.append((work, candidates, hidden))
        logits = self.head.logits([hidden for _, _, hidden in asked], [ids for _, ids, _ in asked])
        for (work, candidates, _), logits_S in zip(asked, logits, strict=True):
            told = work.request.alternatives
            choice = choose(logits_S, candidates, sampling=work.request.sampling, u=work.u, alternatives=told)
            work.take(choice, self.bitmaps)
            try:
                work.candidates()
            except Exception as cause:
                self._end(work, error=_constraint_failed(work, cause))
        for work in ready:
            if work.finish is not None and work in self._active:
                about = self._about
                result = work.generation(version=self.version, engine=about.engine, dtype=about.dtype)
                self._end(work, result=result)

    def _end(self, work: Work, *, result: object = None, error: Exception | None = None) -> None:
        if work in self._active:
            self._active.remove(work)
        if work.slot is not None:
            self._table.settle(work.slot, as_ints(work.token_ids))
            if isinstance(work, Scoring):
                self._table.release(work.context)
            work.slot = None
        if work.future.done() or not work.future.set_running_or_notify_cancel():
            return
        future: Future[Any] = work.future
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _scores(work: Score, head: Head, bitmaps: dict[str, bytes]) -> Scores:
    request = work.request
    supports = request.support or (None,) * request.positions.size
    candidates = [kept_ids(support, head.vocabulary, bitmaps) for support in supports]
    logprobs, entropies = list[float](), list[float]()
    for start in range(0, len(candidates), ROWS_AT_ONCE):
        chosen = candidates[start : start + ROWS_AT_ONCE]
        for offset, logits_S in enumerate(head.logits(work.rows[start : start + ROWS_AT_ONCE], chosen)):
            ids, token = chosen[offset], int(request.token_ids[request.positions[start + offset]])
            place = token if ids is None else int(ids.searchsorted(token))
            logprob, entropy = logprob_of(logits_S, place, request.sampling.temperature)
            logprobs.append(logprob)
            entropies.append(entropy)
    return Scores(logprobs=as_floats(logprobs), entropy=as_floats(entropies))


def _identity(work: Work) -> tuple[str, str, int]:
    """Context, prefix group, and how many tokens may be reused at most."""
    if isinstance(work, Writing):
        return work.request.context, work.request.prefix_group, len(work.token_ids)
    return work.context, "\0score", work.first


def _usable(best: Match[Tensor] | None, count: int, limit: int) -> tuple[int, Tensor | None]:
    """Tokens to reuse, and the hidden state after them where it is known and nothing is left to feed."""
    if best is None:
        return 0, None
    usable = min(best.length, best.slot.fed, limit)
    hidden = best.slot.ends.get(usable)
    if usable == count and hidden is None:
        usable -= 1
    return usable, hidden if usable == count else None


def _remaining(work: Work) -> int:
    return len(work.token_ids) - work.slot.fed if work.slot is not None else 0


def _received(work: Work, feed: Feed, hidden: Tensor) -> None:
    slot = work.slot
    assert slot is not None
    slot.fed = feed.start + len(feed.token_ids)
    if isinstance(work, Scoring):
        work.rows.extend(hidden[at].clone() for at in work.wanted(feed.start, slot.fed))
    elif slot.fed == len(work.token_ids):
        work.hidden = hidden[-1].clone()
        if slot.fed == work.request.token_ids.size:
            slot.ends[slot.fed] = work.hidden


def _constraint_failed(work: Write, cause: Exception) -> EngineFailure:
    error = EngineFailure(
        f"context `{work.request.context}` turn {work.request.turn}: the constraint raised {type(cause).__name__}: "
        f"{cause} after {len(work.written)} tokens"
    )
    error.__cause__ = cause
    return error


def _settle(future: Future[None], run: Callable[[], None]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        run()
    except Exception as cause:
        future.set_exception(cause)
    else:
        future.set_result(None)
