"""Cards without blanks, reductions by name, options that are checked."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from kifu.algorithms import ALGORITHMS, Card, ReductionName, Source, build_algorithm, options_of, reduction_of
from kifu.errors import ExperimentError
from kifu.objectives import token_weights, unit_of

LOSSES = [[[1.0, 1.0], [7.0]], [[2.0] * 6]]
"""Two trajectories of requirement C5, turn by turn."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_card_has_no_blank(name: str) -> None:
    card = ALGORITHMS[name].card
    blank = [item.name for item in fields(Card) if item.name != "notes" and getattr(card, item.name) in ("", (), None)]
    assert blank == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_card_says_what_a_turn_is_by_one_of_the_kinds_there_are(name: str) -> None:
    """What else is special about it stands behind the kind."""
    kind = ALGORITHMS[name].card.turn.split(";")[0].split(":")[0].split(",")[0]
    assert kind.startswith(("assistant message", "tree node", "call of the model"))


def test_cards_tell_the_methods_apart() -> None:
    cards = [algorithm.card for algorithm in ALGORITHMS.values()]
    assert len({card.name for card in cards}) == len(cards)
    for card in cards:
        assert card.neighbour.partition(":")[0] in ALGORITHMS, "the neighbour is a method of this list"
        assert not card.on_policy or card.data in (Source.FRESH, Source.REPLAY), "older data is not on-policy"
    known = {"actor_critic": True, "grpo": True, "ppo": True, "reinforce": True, "sft": False, "sao": False}
    assert {name: ALGORITHMS[name].card.on_policy for name in known} == known


@pytest.mark.parametrize(("name", "mean"), [("token", 21 / 9), ("trajectory", 2.5), ("turn", 10 / 3), ("sum", 10.5)])
def test_a_reduction_by_name_gives_the_printed_mean(name: ReductionName, mean: float) -> None:
    turns_BN = [np.array([turn for turn, tokens in enumerate(item) for _ in tokens]) for item in LOSSES]
    losses_BN = [np.array([loss for tokens in item for loss in tokens]) for item in LOSSES]

    weights_BN = token_weights(reduction_of(name), turns_BN=turns_BN)

    total = sum(float((w * loss).sum()) for w, loss in zip(weights_BN, losses_BN, strict=True))
    assert total == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("name", ["grpo", "ppo", "reinforce", "actor_critic", "sft"])
@pytest.mark.parametrize("average", ["token", "turn", "trajectory"])
def test_the_unit_is_chosen_and_named(name: str, average: str) -> None:
    algorithm = build_algorithm(name, {"average": average})
    assert unit_of(algorithm.reduction) == average


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_options_are_the_fields_and_round_trip(name: str) -> None:
    algorithm = build_algorithm(name)
    assert build_algorithm(name, options_of(algorithm)) == algorithm


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("rlo", {}, ["no algorithm `rlo`; did you mean `rloo`? Known: " + ", ".join(sorted(ALGORITHMS))]),
        ("gropo", {}, ["did you mean `grpo`?"]),
        ("grpo", {"clip_hi": 0.3}, ["algorithm `grpo` has no option `clip_hi`", "did you mean `clip_high`?"]),
        ("grpo", {"std": "sampel"}, ["algorithm `grpo`, option `std`", "'sample'", "found 'sampel'"]),
        ("grpo", {"clip_low": "0.2"}, ["algorithm `grpo`, option `clip_low`", "found '0.2'"]),
        ("ppo", {"epochs": 1.5}, ["algorithm `ppo`, option `epochs`", "found 1.5"]),
        ("ppo", {"epochs": 0}, ["algorithm `ppo`", "epochs", "0"]),
        ("ppo", {"lam": 1.5}, ["algorithm `ppo`", "lam", "1.5"]),
        ("grpo", {"clip_low": -0.1}, ["algorithm `grpo`", "low", "-0.1"]),
        ("actor_critic", {"entropy_coefficient": float("nan")}, ["algorithm `actor_critic`", "entropy_coefficient"]),
        ("reinforce", {"average": "median"}, ["algorithm `reinforce`, option `average`", "found 'median'"]),
    ],
)
def test_a_wrong_option_is_named_with_what_was_expected(name: str, options: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(ExperimentError) as raised:
        build_algorithm(name, options)
    for part in told:
        assert part in str(raised.value)


def test_an_integer_is_taken_where_a_number_is_wanted() -> None:
    assert options_of(build_algorithm("grpo", {"clip_high": 1}))["clip_high"] == 1.0
