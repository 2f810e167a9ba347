"""Best-of-N: what a judge's choice among N attempts at a task is worth.

Axes: ``N`` attempts at one task, in the order they were made.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kifu.errors import UsageError
from kifu.evaluation.intervals import Interval, clustered_wilson, interval_json, paired_bootstrap
from kifu.evaluation.judged import judged_success
from kifu.records import Trajectory


def choose(scores_N: Sequence[float]) -> int:
    """Place of the attempt with the highest score, the first of several.

    Raises:
        UsageError: nothing to choose from, or a score that is no finite number.
    """
    if not scores_N:
        raise UsageError("there is no attempt to choose from")
    if not all(math.isfinite(score) for score in scores_N):
        raise UsageError(f"a judge must give finite scores, found {[*scores_N]}")
    return max(range(len(scores_N)), key=lambda at: (scores_N[at], -at))


def best_of_k(scores_N: Sequence[float], successes_N: Sequence[bool], *, k: int) -> float:
    """Probability that the judge's choice among k attempts is a success, unbiased from N of them.

        sum_i C(i - 1, k - 1) / C(N, k) * success of the attempt of rank i, rank 1 scoring lowest

    The attempt of rank i is chosen from a subset that holds it and k - 1 of the i - 1 below it. Nakano et al., 2021;
    with k = 1 the mean, with k = N the success of the choice.

    Raises:
        UsageError: k outside of 1..N, or as many successes as scores are not given.
    """
    count = len(scores_N)
    if len(successes_N) != count or not 1 <= k <= count:
        raise UsageError(f"k must lie in 1..{count}, one success a score; found k {k}, {len(successes_N)} successes")
    ranked = sorted(range(count), key=lambda at: (scores_N[at], -at))
    hits = sum(math.comb(below, k - 1) for below, at in enumerate(ranked) if successes_N[at])
    return hits / math.comb(count, k)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf:
    """Success of the chosen attempt beside that of one attempt and of any of them, over the same tasks."""

    n: int
    judge: str
    tasks: int
    """That count: N attempts, each scored and each with a known success."""
    left_out: int
    """Tasks with fewer such attempts; they are in no rate."""
    chosen: Interval | None
    """None of everything below when no task counts."""
    one: Interval | None
    """Mean over all attempts."""
    any: Interval | None
    """pass@N: what a judge that is never wrong would reach."""
    gain: Interval | None
    """Chosen minus one, paired by task."""
    by_k: Mapping[int, float]
    """Success of the choice among k, for every k up to N."""
    choices: Mapping[str, str]
    """Task to the id of the chosen attempt, also where its success is unknown."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], scores: Mapping[str, float], *, n: int, judge: str) -> "BestOf":
        """Choose at every task and count.

        Args:
            trajectories: every attempt; infrastructure errors are no candidates.
            scores: of the judge, by id; an attempt without one is no candidate.
            n: candidates a task must have to count.
            judge: its name.
        """
        tries: dict[str, list[Trajectory]] = defaultdict(list)
        for item in sorted(trajectories, key=lambda item: item.key):
            candidates = tries[item.task.id]
            if not item.outcome.infra_error and item.id in scores:
                candidates.append(item)
        chosen = {task: found[choose([scores[item.id] for item in found])].id for task, found in tries.items() if found}
        known: list[tuple[list[float], list[bool]]] = []
        for found in tries.values():
            successes = [won for item in found if (won := judged_success(item)) is not None]
            if len(successes) == len(found) == n:
                known.append(([scores[item.id] for item in found], successes))
        wins_K = np.array([won[choose(score)] for score, won in known], dtype=np.int64)
        any_K = np.array([any(won) for _, won in known], dtype=np.int64)
        total_K = np.array([sum(won) for _, won in known], dtype=np.int64)
        ones_K = np.ones(len(known), dtype=np.int64)
        return cls(
            n=n,
            judge=judge,
            tasks=len(known),
            left_out=len(tries) - len(known),
            chosen=clustered_wilson(wins_K, ones_K) if known else None,
            one=clustered_wilson(total_K, n * ones_K) if known else None,
            any=clustered_wilson(any_K, ones_K) if known else None,
            gain=paired_bootstrap(wins_K - total_K / n) if known else None,
            by_k={
                k: float(np.mean([best_of_k(score, won, k=k) for score, won in known]))
                for k in range(1, n + 1)
                if known
            },
            choices=chosen,
        )

    def to_json(self) -> dict[str, Any]:
        """As ``kifu eval RUN --best-of N --json`` prints it."""
        return {
            "n": self.n,
            "judge": self.judge,
            "tasks": self.tasks,
            "left_out": self.left_out,
            "chosen": interval_json(self.chosen),
            "one": interval_json(self.one),
            f"pass@{self.n}": interval_json(self.any),
            "gain": interval_json(self.gain),
            "by_k": {str(k): rate for k, rate in self.by_k.items()},
            "choices": dict(self.choices),
        }
