"""What k tries at a task give: at least one success (pass@k), or nothing but successes (pass^k)."""

import math

from kifu.errors import UsageError


def pass_at_k(successes: int, tries: int, *, k: int) -> float:
    """Probability that at least one of k tries succeeds, unbiased from ``tries`` of which ``successes`` did.

        1 - C(n - c, k) / C(n, k)

    Chen et al., 2021. Exact: binomials are whole numbers.
    """
    _check(successes, tries, k)
    return 1.0 - math.comb(tries - successes, k) / math.comb(tries, k)


def pass_hat_k(successes: int, tries: int, *, k: int) -> float:
    """Probability that all of k tries succeed, unbiased from ``tries`` of which ``successes`` did.

        C(c, k) / C(n, k)

    Yao et al., 2024 (tau-bench).
    """
    _check(successes, tries, k)
    return math.comb(successes, k) / math.comb(tries, k)


def _check(successes: int, tries: int, k: int) -> None:
    if not 0 <= successes <= tries:
        raise UsageError(f"expected 0 <= successes <= tries, found {successes} of {tries}")
    if not 1 <= k <= tries:
        raise UsageError(f"k must lie in 1..{tries} (the tries there are), found {k}. Run more tries or lower k.")
