"""pass@k and pass^k against every subset of tries."""

from itertools import combinations

import pytest

from kifu.errors import UsageError
from kifu.evaluation import pass_at_k, pass_hat_k


@pytest.mark.parametrize("tries", [1, 2, 5, 7])
def test_both_equal_the_average_over_all_subsets(tries: int) -> None:
    """Enumerate every choice of k tries out of n and count those with one success, and with only successes."""
    for successes in range(tries + 1):
        outcomes = [1] * successes + [0] * (tries - successes)
        for k in range(1, tries + 1):
            subsets = list(combinations(outcomes, k))
            assert pass_at_k(successes, tries, k=k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
            assert pass_hat_k(successes, tries, k=k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_k_beyond_the_tries_is_refused() -> None:
    """Nothing unbiased can be said about more tries than there are."""
    with pytest.raises(UsageError, match="Run more tries"):
        pass_at_k(1, 3, k=4)
    with pytest.raises(UsageError, match="k must lie"):
        pass_hat_k(1, 3, k=0)
