"""Where the next rollouts are worth most: allocation of a budget over tasks and visited prefixes (TRACE, 2606.11119).

The predictor of success is used for allocation only, never as a baseline.

Axes: ``B`` candidates.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace

from kifu.errors import ArgumentError


def root_value(success: float, *, rollouts: int) -> float:
    """Chance that ``rollouts`` attempts disagree: ``1 - v^m - (1 - v)^m``."""
    _check(success, "success")
    _check_count(rollouts)
    return 1.0 - success**rollouts - (1.0 - success) ** rollouts if rollouts else 0.0


def prefix_value(seen: float, success: float, *, rollouts: int) -> float:
    """Chance that one of ``rollouts`` continuations ends otherwise than the one seen.

        1 - (r v + (1 - r) (1 - v))^k

    Args:
        seen: r, outcome of the rollout that visited the prefix: 1 success, 0 failure.
        success: v, predicted success of a continuation.
        rollouts: k.
    """
    _check(seen, "seen")
    _check(success, "success")
    _check_count(rollouts)
    return float(1.0 - (seen * success + (1.0 - seen) * (1.0 - success)) ** rollouts)


def allocate_roots(success_B: Sequence[float], *, budget: int, rollouts: int) -> tuple[int, ...]:
    """``[B]`` rollouts for each candidate task: ``rollouts`` or none, the sum of `root_value` as large as it can be.

    Args:
        success_B: predicted success of each candidate.
        budget: rollouts in all.
        rollouts: of one chosen task, >= 1. What is left of the budget below that stays unused.
    """
    _check_count(budget)
    if rollouts < 1:
        raise ArgumentError(f"a chosen task gets at least 1 rollout, found {rollouts}")
    order = sorted(range(len(success_B)), key=lambda at: (-root_value(success_B[at], rollouts=rollouts), at))
    chosen = set(order[: budget // rollouts])
    return tuple(rollouts if at in chosen else 0 for at in range(len(success_B)))


def allocate_prefixes(seen_B: Sequence[float], success_B: Sequence[float], *, budget: int) -> tuple[int, ...]:
    """``[B]`` continuations from each visited prefix, the sum of `prefix_value` as large as it can be.

    The gain of one continuation more shrinks with every one, so giving each to the largest gain is optimal; of equal
    gains the earlier prefix gets it.
    """
    _check_count(budget)
    if len(seen_B) != len(success_B):
        raise ArgumentError(f"{len(seen_B)} outcomes for {len(success_B)} predictions")
    if not seen_B:
        return ()
    found = [0] * len(seen_B)
    heap = [(-_gain(r, v, 0), at) for at, (r, v) in enumerate(zip(seen_B, success_B, strict=True))]
    heapify(heap)
    for _ in range(budget):
        at = heap[0][1]
        found[at] += 1
        heapreplace(heap, (-_gain(seen_B[at], success_B[at], found[at]), at))
    return tuple(found)


def backed_up_success(counts_B: Sequence[int], success_B: Sequence[float]) -> float:
    """Target of the predictor at a node: ``sum_c n_c V(c) / n``, its children weighed by their rollouts.

    Raises:
        ArgumentError: no child has a rollout.
    """
    total = sum(counts_B)
    if not total:
        raise ArgumentError("the success of a node needs at least one rollout below it")
    return sum(n * v for n, v in zip(counts_B, success_B, strict=True)) / total


def _gain(seen: float, success: float, rollouts: int) -> float:
    more = prefix_value(seen, success, rollouts=rollouts + 1)
    return more - prefix_value(seen, success, rollouts=rollouts)


def _check(probability: float, name: str) -> None:
    if not 0.0 <= probability <= 1.0:
        raise ArgumentError(f"`{name}` is a probability, found {probability}")


def _check_count(count: int) -> None:
    if count < 0:
        raise ArgumentError(f"a number of rollouts is >= 0, found {count}")
