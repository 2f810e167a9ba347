"""Two agents on the same tasks: is the difference more than luck?

Axes: ``K`` tasks.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kifu.errors import UsageError
from kifu.evaluation.intervals import Interval, paired_bootstrap
from kifu.evaluation.judged import judged_success
from kifu.records import Trajectory

_EXACT_LIMIT = 200_000
"""Largest sum of scaled differences for which every assignment of signs is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Success of the second agent minus success of the first, task by task."""

    tasks: int
    """Tasks both have a judged try at."""
    only_first: int
    """Tasks left out because only the first has a judged try."""
    only_second: int
    difference: Interval
    """Mean over tasks, bootstrap interval."""
    better: int
    """Tasks at which the second does better."""
    worse: int
    p_value: float
    """Two-sided, of `sign_flip_test`; McNemar's exact test with one try per task."""

    def to_json(self) -> dict[str, Any]:
        """Field by field."""
        return {
            "tasks": self.tasks,
            "only_first": self.only_first,
            "only_second": self.only_second,
            "difference": self.difference.to_json(),
            "better": self.better,
            "worse": self.worse,
            "p_value": self.p_value,
        }


def compare(first: Iterable[Trajectory], second: Iterable[Trajectory], *, seed: int = 0) -> Comparison:
    """Pair two evaluations by task id.

    Tries without a verdict, infrastructure errors among them, are left out, as in a summary.

    Args:
        first: rollouts of the agent compared with.
        second: rollouts of the agent in question.
        seed: of the resampling.

    Raises:
        UsageError: no task in common.
    """
    rates_a, rates_b = _rates(first), _rates(second)
    shared = sorted(set(rates_a) & set(rates_b))
    if not shared:
        raise UsageError(
            f"nothing to compare: {len(rates_a)} and {len(rates_b)} judged tasks, none in common. "
            "Evaluate both on the same split and seed."
        )
    pairs = [(rates_a[task], rates_b[task]) for task in shared]
    scale = math.lcm(*(tries for a, b in pairs for tries in (a[1], b[1])))
    scaled_K = np.array([b[0] * (scale // b[1]) - a[0] * (scale // a[1]) for a, b in pairs], dtype=np.int64)
    return Comparison(
        tasks=len(shared),
        only_first=len(rates_a) - len(shared),
        only_second=len(rates_b) - len(shared),
        difference=paired_bootstrap(scaled_K / scale, seed=seed),
        better=int((scaled_K > 0).sum()),
        worse=int((scaled_K < 0).sum()),
        p_value=sign_flip_test(scaled_K, seed=seed),
    )


def sign_flip_test(difference_K: npt.NDArray[np.int64], *, seed: int = 0, resamples: int = 100_000) -> float:
    """Two-sided p-value of the mean difference when each task's sign is a fair coin (Fisher, 1935).

    Counts every assignment of signs exactly while the absolute differences sum to at most 200 000, otherwise draws
    ``resamples`` of them. With differences of -1, 0 and 1 this is McNemar's exact test.

    Args:
        difference_K: whole numbers, one per task; any common scale.
        seed: of the drawn signs.
        resamples: number drawn where not counted.
    """
    sizes = np.abs(difference_K[difference_K != 0])
    if sizes.size == 0:
        return 1.0
    unit = int(np.gcd.reduce(sizes))
    sizes = sizes // unit
    observed = abs(int(difference_K.sum())) // unit
    if int(sizes.sum()) <= _EXACT_LIMIT:
        return _exact(sizes, observed)
    rng = np.random.default_rng(seed)
    hits = sum(
        int((np.abs(rng.choice([-1, 1], size=(1000, sizes.size)) @ sizes) >= observed).sum())
        for _ in range(resamples // 1000)
    )
    return (hits + 1) / (resamples // 1000 * 1000 + 1)


def _exact(sizes: npt.NDArray[np.int64], observed: int) -> float:
    total = int(sizes.sum())
    chance = np.zeros(total + 1)  # chance[s]: the positive part of the sum is s
    chance[0] = 1.0
    for size in sizes.tolist():
        shifted = np.zeros_like(chance)
        shifted[size:] = chance[: total + 1 - size]
        chance = (chance + shifted) / 2
    sums = np.abs(2 * np.arange(total + 1) - total)
    return min(1.0, float(chance[sums >= observed].sum()))


def _rates(trajectories: Iterable[Trajectory]) -> dict[str, tuple[int, int]]:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for trajectory in trajectories:
        success = judged_success(trajectory)
        if success is not None:
            counts[trajectory.task.id][0] += success
            counts[trajectory.task.id][1] += 1
    return {task: (won, tries) for task, (won, tries) in counts.items()}
