"""The token model: whole answer as a bandit and token by token as a process give the same numbers."""

from math import log, prod

import numpy as np
import pytest

from kifu.errors import ArgumentError
from kifu.lab import StochasticPolicy, enumerate_trajectories, objective, token_process

VOCABULARY, END, LENGTH = 3, 2, 4


def _reward(string: tuple[int, ...]) -> float:
    return float(string.count(1)) - (0.0 if string[-1] == END else 5.0)


def test_the_probability_of_an_answer_is_the_product_over_its_tokens_and_all_answers_sum_to_one() -> None:
    """Its logarithm is the sum over tokens; the world adds nothing, because s || a is certain."""
    process = token_process(vocabulary=VOCABULARY, end=END, max_tokens=LENGTH, reward=_reward)
    table_SA = np.random.default_rng(0).dirichlet(np.ones(VOCABULARY), size=len(process.prefixes_S))
    row = {prefix: table_SA[at] for at, prefix in enumerate(process.prefixes_S)}
    total, bandit = 0.0, 0.0
    for item in enumerate_trajectories(process.mdp, StochasticPolicy(table_SA=table_SA), max_steps=LENGTH):
        answer = tuple(int(step.action) for step in item.trajectory.transitions)
        steps = [float(row[answer[:t]][token]) for t, token in enumerate(answer)]
        assert item.world_factor == 1.0
        assert log(item.policy_factor) == pytest.approx(sum(log(step) for step in steps), abs=1e-12)
        assert item.trajectory.is_episode
        total += prod(steps)
        bandit += prod(steps) * _reward(answer)
    assert total == pytest.approx(1.0, abs=1e-12)
    assert objective(process.mdp, StochasticPolicy(table_SA=table_SA)) == pytest.approx(bandit, abs=1e-12)


def test_the_judge_is_declared_apart_from_the_dynamics() -> None:
    """Whoever computes the reward has a name."""
    process = token_process(vocabulary=2, end=1, max_tokens=2, reward=len, judge="unit tests")
    assert process.mdp.reward_source == "unit tests"
    assert process.prefixes_S == ((), (0,), None)


@pytest.mark.parametrize(("end", "max_tokens"), [(3, 2), (-1, 2), (0, 0)])
def test_strings_that_cannot_end_are_refused(end: int, max_tokens: int) -> None:
    """An end token outside the vocabulary, or no token at all."""
    with pytest.raises(ArgumentError, match="the end token lies in the vocabulary"):
        token_process(vocabulary=3, end=end, max_tokens=max_tokens, reward=len)
