"""What one record must answer by itself: the check before every update, and the figures an audit rebuilds."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kifu.errors import StorageError
from kifu.records.blobs import BlobStore
from kifu.records.outcome import Owner, StopReason
from kifu.records.tokens import Origin, Span
from kifu.records.trajectory import Purpose, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """A span of a tape's own tokens and where it stands in the tape's whole sequence."""

    tape: int
    start: int
    span: Span

    @property
    def stop(self) -> int:
        """Position after its last token."""
        return self.start + len(self.span)


def placed_spans(trajectory: Trajectory, *, origin: Origin | None = None) -> Iterator[Placed]:
    """Every span once, on the tape that owns it, tape by tape; only those of ``origin`` when it is given."""
    for index, tape in enumerate(trajectory.tapes):
        at = tape.fork_at
        for span in tape.spans:
            if origin is None or span.origin is origin:
                yield Placed(tape=index, start=at, span=span)
            at += len(span)


def bitmaps_of(trajectory: Trajectory) -> set[str]:
    """Digests of the bitmaps that the supports of a record name."""
    supports = (span.support or () for tape in trajectory.tapes for span in tape.spans)
    return {support.mask for found in supports for support in found if support is not None and support.mask}


def turn_logprobs(trajectory: Trajectory) -> dict[int, float]:
    """Sum of the sampled tokens' logprobs of each turn that has any, in nats, added in float64."""
    found: dict[int, float] = {}
    for placed in placed_spans(trajectory, origin=Origin.POLICY):
        logprobs = placed.span.logprobs
        assert logprobs is not None
        found[placed.span.turn] = found.get(placed.span.turn, 0.0) + float(logprobs.sum(dtype=np.float64))
    return found


def rebuild_check(trajectory: Trajectory, *, blobs: BlobStore | None = None) -> list[str]:
    """Why the record does not determine its own figures; empty when it does.

    Checked: every sampled token has a context and lies in its turn; the stop reason fits the last turn; a task that
    ended was judged; state digests are there at both ends or, where the environment cannot make any, at neither.

    Args:
        trajectory: the record.
        blobs: the run's table of bitmaps; without it supports of kind ``mask`` are not looked up.
    """
    found = [why for placed in placed_spans(trajectory, origin=Origin.POLICY) for why in _placement(trajectory, placed)]
    outcome, environment = trajectory.outcome, trajectory.environment
    if outcome.reason is StopReason.NATURAL_END and trajectory.turns and trajectory.turns[-1].action.executed:
        found.append("stop reason natural_end, but the last turn executed a call")
    if outcome.reason.owner is Owner.TASK and trajectory.verdict is None:
        found.append(f"stop reason {outcome.reason}, but no verdict: the final reward cannot be rebuilt")
    if not outcome.infra_error and (environment.initial_digest is None) != (environment.final_digest is None):
        missing = "initial" if environment.initial_digest is None else "final"
        found.append(f"the {missing} state digest is missing: the environment's snapshot cannot be checked")
    if blobs is not None:
        found += _mask_problems(trajectory, blobs)
    return found


def pre_update_check(trajectory: Trajectory, *, blobs: BlobStore | None = None) -> list[str]:
    """Why a record must not enter an update; empty when it may. A record that fails is demonstration-only.

    Everything of `rebuild_check`, and: it was made for training; it has sampled tokens, each from a distribution that
    a ratio may be taken over; and a reward, or a value to bootstrap from where the collector cut the episode. A
    demonstration needs demonstrated tokens and no reward.
    """
    found = rebuild_check(trajectory, blobs=blobs)
    purpose = trajectory.key.purpose
    if purpose is Purpose.EVALUATION:
        found.append("made for evaluation")
    wanted = Origin.DEMONSTRATION if purpose is Purpose.DEMONSTRATION else Origin.POLICY
    spans = list(placed_spans(trajectory, origin=wanted))
    if not spans:
        found.append(f"no token of origin {wanted}")
    if wanted is Origin.DEMONSTRATION:
        return found
    for sampling in {placed.span.sampling for placed in spans}:
        if sampling is not None and not sampling.is_trainable:
            how = ", ".join(sampling.untrainable) or "greedily"
            found.append(f"sampled {how}: no ratio can be taken over these tokens")
    if trajectory.outcome.infra_error:
        found.append(f"infrastructure failed ({trajectory.outcome.reason}): it says nothing about the policy")
    elif trajectory.reward is None and not (trajectory.outcome.truncated and trajectory.final_value is not None):
        found.append("no reward: absent is not zero")
    return found


def _placement(trajectory: Trajectory, placed: Placed) -> Iterator[str]:
    where = f"sampled tokens [{placed.start}, {placed.stop}) of tape {placed.tape}"
    if placed.start == 0:
        yield f"{where}: the first one has no context to be sampled from"
    if placed.span.turn >= len(trajectory.turns):
        yield f"{where}: belong to turn {placed.span.turn}, the record has {len(trajectory.turns)} turns"
        return
    turn = trajectory.turns[placed.span.turn]
    if turn.tape != placed.tape or not turn.start <= placed.start <= placed.stop <= turn.stop:
        yield f"{where}: lie outside turn {turn.index}, which is [{turn.start}, {turn.stop}) of tape {turn.tape}"


def _mask_problems(trajectory: Trajectory, blobs: BlobStore) -> list[str]:
    """Bitmaps that are missing, changed, or leave out the token sampled under them."""
    found: list[str] = []
    bitmaps: dict[str, bytes] = {}
    for placed in placed_spans(trajectory, origin=Origin.POLICY):
        for at, support in enumerate(placed.span.support or ()):
            if support is None or support.mask is None:
                continue
            if support.mask not in bitmaps:
                try:
                    bitmaps[support.mask] = blobs.get(support.mask)
                except StorageError as error:
                    found.append(f"bitmap of a support: {error}")
                    bitmaps[support.mask] = b""
            bitmap, token = bitmaps[support.mask], int(placed.span.token_ids[at])
            if bitmap and (token // 8 >= len(bitmap) or not bitmap[token // 8] >> (token % 8) & 1):
                found.append(f"token {token} at {placed.start + at} of tape {placed.tape} is outside its support")
    return found
