"""Pairs of attempts, and the wrong turn that is hardest to unlearn."""

import numpy as np
import pytest

from kifu.credit import Episode, TurnFacts, WrongTurn, hardest_wrong_turn, preference_pairs
from kifu.errors import ArgumentError


@pytest.mark.parametrize(
    ("rewards", "pairs"),
    [
        ([1.0, 0.0], [(0, 1)]),
        ([0.0, 1.0], [(1, 0)]),
        ([0.5, 1.0, 0.0, 0.7], [(1, 2), (3, 0)]),
        ([1.0, 1.0, 0.0], [(0, 2)]),
        ([1.0, 0.0, 0.0, 0.0], [(0, 3)]),
        ([0.0, None, -1.0], [(0, 2)]),
        ([0.3, 0.3], []),
        ([1.0], []),
        ([None, None], []),
        ([], []),
    ],
)
def test_the_best_is_paired_with_the_worst(rewards: list[float | None], pairs: list[tuple[int, int]]) -> None:
    assert preference_pairs(rewards) == pairs


def test_names_decide_among_equals_so_that_order_does_not() -> None:
    rewards, names = [1.0, 0.0, 1.0, 0.0], ["d", "c", "b", "a"]

    found = {(names[one], names[two]) for one, two in preference_pairs(rewards, names_G=names)}
    turned = preference_pairs(rewards[::-1], names_G=names[::-1])

    assert found == {(names[::-1][one], names[::-1][two]) for one, two in turned} == {("b", "c"), ("d", "a")}


def test_rewards_of_a_pair_differ_by_more_than_the_margin() -> None:
    assert preference_pairs([1.0, 0.6, 0.5, 0.0], margin=0.1) == [(0, 3)]
    assert preference_pairs([1.0, 0.0], margin=1.0) == []
    with pytest.raises(ArgumentError, match="margin of a preference must be >= 0, found nan"):
        preference_pairs([1.0, 0.0], margin=float("nan"))


def attempt(name: str, *turns: tuple[str, str, float], args: str = "") -> Episode:
    """Turns as (state, tool, log-probability of the action)."""
    facts = tuple(
        TurnFacts(
            num_tokens=2, state=state, tool=tool, action=f"{tool}({args})", logprobs_N=np.array([logp / 2, logp / 2])
        )
        for state, tool, logp in turns
    )
    return Episode(rewards_K=np.zeros(len(turns)), terminated=True, turns=facts, id=name)


EXPERT = attempt("e", ("s", "look", -0.1), ("t", "take", -0.2), ("u", "open", -0.3))


class TestWrongTurns:
    def test_of_equally_likely_ones_the_name_decides_so_that_order_does_not(self) -> None:
        """Two wrong turns of one log-probability: the same one is found however the group stands."""
        twins = [attempt(name, ("s", "look", -0.1), ("t", "drop", -0.4)) for name in ("a", "b")]
        found = {}
        for group in ([EXPERT, *twins], [twins[1], EXPERT, twins[0]], [*twins, EXPERT]):
            wrong = hardest_wrong_turn(group, expert=group.index(EXPERT))
            assert wrong is not None
            found[group[wrong.member].id] = (wrong.turn, wrong.logprob)
        assert found == {"b": (1, -0.4)}

    def test_the_likeliest_other_tool_in_a_state_of_the_expert_is_found(self) -> None:
        group = [
            attempt("a", ("s", "look", -0.1), ("t", "open", -2.0)),
            EXPERT,
            attempt("b", ("s", "open", -3.0)),
            attempt("c", ("s", "look", -0.1), ("t", "take", -0.1), ("u", "look", -1.0)),
        ]

        assert hardest_wrong_turn(group, expert=1) == WrongTurn(member=3, turn=2, logprob=-1.0)
        assert hardest_wrong_turn(group[:3], expert=1) == WrongTurn(member=0, turn=1, logprob=-2.0)

    @pytest.mark.parametrize(
        "other",
        [
            attempt("a", ("s", "look", -0.1), ("t", "take", -0.1), ("u", "open", -0.1)),
            attempt("a", ("x", "open", -0.1)),
            attempt("a", ("s", "look", -0.1), ("x", "open", -0.1)),
            attempt("a", ("s", "look", -0.1), args="elsewhere"),
            attempt("a", ("s", "look", -0.1)),
            attempt("a"),
        ],
        ids=["the same", "another start", "another state", "other arguments", "shorter", "empty"],
    )
    def test_no_wrong_turn(self, other: Episode) -> None:
        assert hardest_wrong_turn([EXPERT, other], expert=0) is None

    def test_what_parted_earlier_by_arguments_is_not_compared_further(self) -> None:
        other = attempt("a", ("s", "look", -0.1), ("t", "open", -0.1), args="x")

        assert hardest_wrong_turn([EXPERT, other], expert=0) is None

    def test_missing_facts_are_named(self) -> None:
        other = Episode(rewards_K=np.zeros(1), terminated=True, turns=(TurnFacts(num_tokens=1, state="s"),), id="a")
        with pytest.raises(ArgumentError, match=r"a, turn 0: the method needs `action`"):
            hardest_wrong_turn([EXPERT, other], expert=0)
        silent = TurnFacts(num_tokens=1, state="s", tool="open", action="open()")
        other = Episode(rewards_K=np.zeros(1), terminated=True, turns=(silent,), id="a")
        with pytest.raises(ArgumentError, match=r"a, turn 0: the method needs `behaviour_logprob` of every token"):
            hardest_wrong_turn([EXPERT, other], expert=0)
