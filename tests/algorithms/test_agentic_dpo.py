"""Agentic-DPO: one action at one expert state, an anchor without a negative, and the printed loss."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kifu.algorithms import TurnCredit, build_algorithm
from kifu.credit import BranchPoint, Episode, RefreshedPairs, StoredPairs
from kifu.credit.reading import RewardRules
from kifu.objectives import PreferenceObjective

Known = Callable[..., Episode]


@pytest.fixture
def attempt(make_known: Known) -> Callable[..., Episode]:
    """Turns as (state, tool), tokens at log-probability ``logp`` each."""

    def make(name: str, outcome: float, *turns: tuple[str, str], logp: float = -1.0) -> Episode:
        return make_known(
            [0.0] * len(turns),
            id=name,
            outcome=outcome,
            tokens=[1] * len(turns),
            state=[state for state, _ in turns],
            tool=[tool for _, tool in turns],
            action=[tool for _, tool in turns],
            logprobs_N=[np.array([logp])] * len(turns),
        )

    return make


def credits(group: list[Episode], **options: Any) -> list[TurnCredit] | None:  # noqa: ANN401 (options of the method)
    return build_algorithm("agentic_dpo", {"negatives": "recorded", **options}).credit(group, RewardRules())


def sampled(group: list[Episode], **options: Any) -> list[TurnCredit] | None:  # noqa: ANN401 (options of the method)
    return build_algorithm("agentic_dpo", options).credit(group, RewardRules())


def left(episode: Episode, parent: str, turn: int) -> Episode:
    """The episode as a branch of another one."""
    return replace(episode, branch=BranchPoint(parent=parent, turn=turn))


def kept(found: list[TurnCredit]) -> list[list[bool]]:
    return [[credit.keeps(turn) for turn in range(credit.advantages_K.size)] for credit in found]


def test_the_experts_action_is_preferred_to_the_hardest_wrong_tool_in_its_state(
    attempt: Callable[..., Episode],
) -> None:
    group = [
        attempt("a", 0.0, ("s", "look"), ("t", "open"), logp=-0.5),
        attempt("b", 1.0, ("s", "look"), ("t", "take"), ("u", "open")),
        attempt("c", 0.0, ("s", "open"), logp=-2.0),
        attempt("d", 1.0, ("s", "look"), ("t", "take"), ("u", "open")),
    ]

    found = credits(group)

    assert found is not None
    assert kept(found) == [[False, True], [False, True, False], [False], [False, False, False]]
    assert [credit.pair for credit in found] == [0, 0, None, None]
    assert [credit.advantages_K.tolist() for credit in found] == [[0.0, -1.0], [0.0, 1.0, 0.0], [0.0], [0.0] * 3]


def test_without_a_wrong_tool_the_whole_expert_is_imitated(attempt: Callable[..., Episode]) -> None:
    group = [attempt("a", 1.0, ("s", "look"), ("t", "take")), attempt("b", 0.0, ("x", "open"))]

    found = credits(group)

    assert found is not None
    assert kept(found) == [[True, True], [False]]
    assert [credit.pair for credit in found] == [0, None]


def test_without_an_expert_there_is_nothing(attempt: Callable[..., Episode]) -> None:
    group = [attempt("a", 0.9, ("s", "look")), attempt("b", 0.0, ("s", "open"))]

    assert credits(group) is None
    assert credits(group, min_reward=0.9) is not None


def test_the_defaults_are_the_printed_ones() -> None:
    """The scale .008 over sqrt(100) is .0008; its loss is in tests/objectives/test_preference.py."""
    assert build_algorithm("agentic_dpo").objective() == PreferenceObjective(
        beta=0.008, reference=False, length_power=0.5, preference=1.0, likelihood=0.5
    )


def test_dpo_takes_the_whole_attempts(attempt: Callable[..., Episode]) -> None:
    group = [
        attempt("a", 1.0, ("s", "look"), ("t", "take")),
        attempt("b", 0.0, ("s", "look"), ("t", "open")),
    ]
    mine, other = credits(group), build_algorithm("dpo").credit(group, RewardRules())

    assert mine is not None
    assert other is not None
    assert kept(mine) == [[False, True], [False, True]]
    assert kept(other) == [[True, True], [True, True]]


class TestSampledNegatives:
    """Actions of the present policy branch from the expert; no state key is compared."""

    def test_the_likeliest_action_with_another_tool_is_the_negative(self, attempt: Callable[..., Episode]) -> None:
        """Of -2, -1 (the expert's own tool), -3 and -2.5 nats the first is the hardest that counts."""
        group = [
            attempt("e", 1.0, ("s", "look"), ("t", "take"), ("u", "open")),
            left(attempt("w", 0.0, ("?", "look"), ("?", "open"), logp=-2.0), "e", 1),
            left(attempt("x", 1.0, ("?", "look"), ("?", "take"), logp=-1.0), "e", 1),
            left(attempt("y", 0.0, ("?", "look"), ("?", ""), logp=-3.0), "e", 1),
            left(attempt("z", 0.0, ("?", "look"), ("?", "look"), logp=-2.5), "e", 1),
        ]

        found = sampled(group)

        assert found is not None
        assert kept(found) == [[False, True, False], [False, True], [False, False], [False, False], [False, False]]
        assert [credit.pair for credit in found] == [0, 0, None, None, None]
        assert [credit.advantages_K.tolist() for credit in found[:2]] == [[0.0, 1.0, 0.0], [0.0, -1.0]]

    def test_where_every_action_names_the_experts_tool_its_likelihood_is_left(
        self, attempt: Callable[..., Episode]
    ) -> None:
        expert = attempt("e", 1.0, ("s", "look"), ("t", "take"))
        found = sampled([expert, left(attempt("w", 0.0, ("s", "look")), "e", 0)])

        assert found is not None
        assert kept(found) == [[True, False], [False]]
        assert [credit.pair for credit in found] == [0, None]

    def test_without_actions_the_whole_expert_is_imitated(self, attempt: Callable[..., Episode]) -> None:
        """As in the warm-up; a rollout that wrote nothing of its own counts for nothing."""
        expert = attempt("e", 1.0, ("s", "look"), ("t", "take"))

        assert kept(sampled([expert]) or []) == [[True, True]]
        silent = left(attempt("w", 0.0, ("s", "look")), "e", 1)
        assert kept(sampled([expert, silent]) or []) == [[False, True], [False]]

    def test_a_sampled_action_that_succeeds_is_no_expert(self, attempt: Callable[..., Episode]) -> None:
        assert sampled([left(attempt("a", 1.0, ("s", "look")), "e", 0)]) is None

    def test_attempts_of_the_stored_group_are_no_sampled_negatives(self, attempt: Callable[..., Episode]) -> None:
        """The input on which the two forms differ."""
        group = [attempt("a", 1.0, ("s", "look"), ("t", "take")), attempt("b", 0.0, ("s", "look"), ("t", "open"))]

        assert kept(sampled(group) or []) == [[True, True], [False, False]]
        assert kept(credits(group) or []) == [[False, True], [False, True]]

    def test_the_plan_is_the_published_one(self) -> None:
        """4 actions at .7 from .95 of the mass, 256 tokens; 75 steps of warm-up and 75 a round."""
        assert build_algorithm("agentic_dpo").plan.data == RefreshedPairs(
            min_reward=1.0, samples=4, temperature=0.7, top_p=0.95, max_tokens=256, warm_up=75, round_steps=75
        )
        assert build_algorithm("agentic_dpo", {"negatives": "recorded"}).plan.data == StoredPairs()
