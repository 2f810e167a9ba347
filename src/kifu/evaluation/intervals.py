"""Intervals of a success rate. Pure functions of counts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from kifu.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with the ends of its confidence interval."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """``mean``, ``low``, ``high``."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


def interval_json(found: Interval | None) -> dict[str, Any]:
    """``mean``, ``low``, ``high``; nulls where nothing was judged: absent, not zero."""
    return dict.fromkeys(("mean", "low", "high")) if found is None else found.to_json()


def wilson(successes: float, trials: float, *, confidence: float = 0.95) -> Interval:
    """Score interval of a binomial rate; keeps its coverage for few trials and at 0 and 1.

        center = (p + z^2 / 2n) / (1 + z^2 / n)
        half   = z sqrt(p (1 - p) / n + z^2 / 4n^2) / (1 + z^2 / n)

    Wilson, 1927. Neither count need be whole: `clustered_wilson` passes an effective number of trials.

    Raises:
        UsageError: no trials, or more successes than trials.
    """
    _check(successes, trials, confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = successes / trials
    scale = 1 + z * z / trials
    center = (p + z * z / (2 * trials)) / scale
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / scale
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == trials else center + half
    return Interval(mean=p, low=low, high=high)


def clustered_wilson(
    successes_K: npt.NDArray[np.int64], trials_K: npt.NDArray[np.int64], *, confidence: float = 0.95
) -> Interval:
    """Wilson's interval for tries that come in tasks: tries at one task are not independent.

    The number of trials is replaced by the one that independent tries would need for the same variance of the mean,

        n_eff = p (1 - p) / var,   var = K / (K - 1) * sum_k (s_k - p n_k)^2 / n^2

    kept between the number of tasks and the number of tries; the number of tasks where every try succeeds or none does.
    With one try per task this is Wilson's interval; with one task it speaks of that task only.

    Args:
        successes_K: successes of each task.
        trials_K: judged tries of each task, each >= 1.
        confidence: of the interval, e.g. 0.95.
    """
    num_tasks, trials, successes = len(trials_K), int(trials_K.sum()), int(successes_K.sum())
    _check(successes, trials, confidence)
    p = successes / trials
    if num_tasks in (1, trials):
        return wilson(successes, trials, confidence=confidence)
    spread = float(((successes_K - p * trials_K) ** 2).sum())
    variance = spread / trials**2 * num_tasks / (num_tasks - 1)
    if variance > 0:
        effective = min(float(trials), max(float(num_tasks), p * (1 - p) / variance))
    else:
        effective = float(num_tasks if p in (0.0, 1.0) else trials)
    found = wilson(p * effective, effective, confidence=confidence)
    return Interval(mean=p, low=min(found.low, p), high=max(found.high, p))


def clopper_pearson(successes: int, trials: int, *, confidence: float = 0.95) -> Interval:
    """Exact interval: never covers less than promised, wider than `wilson`.

    The ends are the rates at which as many successes or more, or as many or fewer, have probability
    (1 - confidence) / 2. Clopper and Pearson, 1934.
    """
    _check(successes, trials, confidence)
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else _root(lambda p: 1 - _binomial_cdf(successes - 1, trials, p) - tail)
    high = 1.0 if successes == trials else _root(lambda p: tail - _binomial_cdf(successes, trials, p))
    return Interval(mean=successes / trials, low=low, high=high)


def _check(successes: float, trials: float, confidence: float) -> None:
    if trials <= 0 or not 0 <= successes <= trials:
        raise UsageError(f"an interval needs 0 <= successes <= trials and trials > 0, found {successes} of {trials}")
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must lie in (0, 1), found {confidence}")


def _binomial_cdf(k: int, n: int, p: float) -> float:
    if p <= 0.0 or p >= 1.0:
        return 1.0 if p <= 0.0 or k >= n else 0.0
    terms = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    ]
    return math.fsum(math.exp(term) for term in terms)


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def paired_bootstrap(
    difference_K: npt.NDArray[np.float64], *, seed: int = 0, resamples: int = 10_000, confidence: float = 0.95
) -> Interval:
    """Percentile interval of a mean over tasks, tasks drawn with replacement (Efron, 1979).

    Args:
        difference_K: one number per task, e.g. success of one agent minus success of the other.
        seed: of the resampling.
        resamples: number of resampled means.
        confidence: of the interval.
    """
    if difference_K.size == 0:
        raise UsageError("a bootstrap needs at least one task, found none")
    rng = np.random.default_rng(seed)
    count = difference_K.size
    # Multinomial counts instead of drawn indices: one row per resample, memory for one block at a time.
    means = np.concatenate(
        [
            rng.multinomial(count, np.full(count, 1 / count), size=min(1000, resamples - start)) @ difference_K / count
            for start in range(0, resamples, 1000)
        ]
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean=float(difference_K.mean()), low=float(low), high=float(high))
