"""Allocation of rollouts against printed numbers and exhaustive search."""

from itertools import product

import pytest

from kifu.credit.budget import allocate_prefixes, allocate_roots, backed_up_success, prefix_value, root_value
from kifu.errors import ArgumentError


@pytest.mark.parametrize(
    ("v", "m", "printed"), [(0.5, 8, 0.992188), (0.1, 8, 0.569533), (0.01, 8, 0.077255), (0.5, 2, 0.5), (0.1, 2, 0.18)]
)
def test_worth_of_a_root_as_printed(v: float, m: int, printed: float) -> None:
    assert round(root_value(v, rollouts=m), 6) == printed


@pytest.mark.parametrize(("r", "v", "printed"), [(1.0, 0.5, 0.75), (1.0, 0.2, 0.96), (0.0, 0.2, 0.36)])
def test_worth_of_a_prefix_as_printed(r: float, v: float, printed: float) -> None:
    assert prefix_value(r, v, rollouts=2) == pytest.approx(printed, abs=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("v", [0.0, 0.3, 1.0])
def test_worth_of_a_root_is_the_chance_of_a_mixed_group(v: float, m: int) -> None:
    mixed = sum(
        v ** sum(outcome) * (1 - v) ** (m - sum(outcome))
        for outcome in product([0, 1], repeat=m)
        if 0 < sum(outcome) < m
    )
    assert root_value(v, rollouts=m) == pytest.approx(mixed, abs=1e-12)


def test_no_rollout_is_worth_nothing() -> None:
    assert root_value(0.5, rollouts=0) == prefix_value(1.0, 0.5, rollouts=0) == 0.0


@pytest.mark.parametrize("budget", range(9))
def test_roots_are_chosen_as_well_as_any_choice(budget: int) -> None:
    success = [0.9, 0.5, 0.02, 0.45, 0.0]
    found = allocate_roots(success, budget=budget, rollouts=2)

    best = max(
        sum(root_value(v, rollouts=2) for v, taken in zip(success, choice, strict=True) if taken)
        for choice in product([0, 1], repeat=5)
        if 2 * sum(choice) <= budget
    )
    assert sum(found) <= budget
    assert set(found) <= {0, 2}
    worth = sum(root_value(v, rollouts=2) for v, n in zip(success, found, strict=True) if n)
    assert worth == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("budget", range(6))
def test_prefixes_share_the_budget_as_well_as_any_split(budget: int) -> None:
    seen, success = [1.0, 0.0, 1.0, 0.0], [0.9, 0.3, 0.2, 0.0]
    found = allocate_prefixes(seen, success, budget=budget)

    def worth(counts: tuple[int, ...]) -> float:
        return sum(prefix_value(r, v, rollouts=k) for r, v, k in zip(seen, success, counts, strict=True))

    best = max(worth(counts) for counts in product(range(budget + 1), repeat=4) if sum(counts) == budget)
    assert sum(found) == budget
    assert worth(found) == pytest.approx(best, abs=1e-12)


def test_of_equal_candidates_the_earlier_one_is_taken() -> None:
    assert allocate_roots([0.5, 0.5, 0.5], budget=4, rollouts=2) == (2, 2, 0)
    assert allocate_prefixes([1.0, 1.0], [0.5, 0.5], budget=1) == (1, 0)
    assert allocate_prefixes([], [], budget=3) == ()


def test_a_node_s_target_weighs_its_children_by_their_rollouts() -> None:
    assert backed_up_success([1, 3], [1.0, 1 / 3]) == pytest.approx(0.5, abs=1e-15)
    with pytest.raises(ArgumentError, match="at least one rollout"):
        backed_up_success([0], [0.5])


def test_what_is_no_probability_or_count_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"`success` is a probability, found 1\.2"):
        root_value(1.2, rollouts=2)
    with pytest.raises(ArgumentError, match="number of rollouts"):
        prefix_value(1.0, 0.5, rollouts=-1)
    with pytest.raises(ArgumentError, match="at least 1 rollout"):
        allocate_roots([0.5], budget=2, rollouts=0)
    with pytest.raises(ArgumentError, match="1 outcomes for 2 predictions"):
        allocate_prefixes([1.0], [0.5, 0.5], budget=1)
