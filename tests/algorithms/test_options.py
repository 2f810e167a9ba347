"""Ranges of every numeric option of every method, told by what the option is for and not by how it is declared."""

from typing import Any

import pytest

from kifu.algorithms import ALGORITHMS, build_algorithm, options_of
from kifu.errors import ExperimentError

OFF_BY_DEFAULT = {"value_clip", "fill", "similarity", "clip_low", "dual", "dual_clip"}
COUNTS_OFF_BY_DEFAULT = {"max_tokens", "initial_rollouts"}
MAY_BE_NEGATIVE = {"min_reward", "replay_below_mean", "success_above"}
"""Levels of a reward; every other number is a size, a count, a weight or a probability."""
UP_TO_ONE = {
    *("clip_low", "lam", "gamma", "turn_gamma", "turn_lam", "step_gamma", "graph_gamma", "decay", "floor", "share"),
    *("root_share", "top_p", "branch_probability", "branch_threshold", "band_low", "band_high", "similarity"),
}
"""Discounts, shares and probabilities; and no ratio lies further below 1 than 1."""
ABOVE_ZERO = {"value_clip", "temperature", "cap", "constant", "prior", "gap_eps", "graph_gamma", "floor", "share"}
"""Divisors, and bounds at which 0 would hold everything still."""
FROM_ZERO = {"min_calls", "warm_up"}
"""Counts that may be 0."""


def numeric(name: str, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number or (value is None and name in OFF_BY_DEFAULT | COUNTS_OFF_BY_DEFAULT)


OPTIONS = [
    (method, name, value)
    for method in ALGORITHMS
    for name, value in options_of(build_algorithm(method)).items()
    if numeric(name, value)
]
"""Every numeric option with its default."""


def is_refused(method: str, name: str, value: object) -> bool:
    """Whether the method refuses the option, by its name."""
    try:
        build_algorithm(method, {name: value})
    except ExperimentError as refused:
        return str(refused).startswith((f"algorithm `{method}`, option `{name}", f"algorithm `{method}`: "))
    return False


@pytest.mark.parametrize(("method", "name", "default"), OPTIONS)
def test_every_number_has_a_range_that_makes_sense(method: str, name: str, default: object) -> None:
    whole = isinstance(default, int) or name in COUNTS_OFF_BY_DEFAULT
    wrong: list[object] = ["1", True, [1]]
    wrong += [1.5] if whole else [float("nan"), float("inf")]
    wrong += [] if name in MAY_BE_NEGATIVE else [-1 if whole else -0.5]
    wrong += [10**9 + 1, 10**400] if whole else [1e308]
    wrong += [0] if whole and name not in FROM_ZERO else []
    wrong += [1.0001] if name in UP_TO_ONE else []
    wrong += [0.0, 5e-324] if name in ABOVE_ZERO - UP_TO_ONE else [0.0] if name in ABOVE_ZERO else []
    wrong += [1.0] if name in ("dual", "dual_clip") else []

    assert [value for value in wrong if not is_refused(method, name, value)] == []
    assert not is_refused(method, name, default)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("simpletir", {"band_low": 0.6, "band_high": 0.4}),
        ("hcapo", {"ratio_low": 1.3, "ratio_high": 1.2}),
        ("dapo", {"overlong": [100, 200]}),
        ("aepo", {"beam_size": 1}),
        ("trace_budget", {"rollouts": 600}),
        ("igpo", {"gold_template": "no place"}),
    ],
)
def test_what_leaves_nothing_between_or_has_no_place_is_refused_by_name(method: str, options: dict[str, Any]) -> None:
    """By the names that were given, and in the words of the formula alone."""
    with pytest.raises(ExperimentError) as raised:
        build_algorithm(method, options)
    told = str(raised.value)
    assert [name for name in (method, *options) if f"`{name}`" not in told] == []
    assert [word for word in ("``", "an object", "Invalid JSON") if word in told] == []


def test_an_option_that_holds_itself_many_times_over_is_refused_by_name() -> None:
    deep: list[object] = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(ExperimentError, match=r"^algorithm `grpo`, options `std`, `eps`: nested too deeply$"):
        build_algorithm("grpo", {"std": "none", "eps": deep})


@pytest.mark.parametrize("overlong", [[10**400, 1], [10**9, 0]])
def test_both_numbers_of_a_pair_have_a_range(overlong: list[int]) -> None:
    with pytest.raises(ExperimentError, match=r"option `overlong\.[01]`"):
        build_algorithm("dapo", {"overlong": overlong})


def test_the_message_says_what_was_found_and_what_would_do() -> None:
    with pytest.raises(ExperimentError, match=r"algorithm `grpo`, option `clip_low`: found 1.5, expected at most 1"):
        build_algorithm("grpo", {"clip_low": 1.5})


def test_a_lower_bound_of_exactly_nothing_is_still_one() -> None:
    """1 - 1 = 0: no ratio is below it, so nothing is clipped from below."""
    assert options_of(build_algorithm("grpo", {"clip_low": 1.0}))["clip_low"] == 1.0
