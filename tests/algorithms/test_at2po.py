"""AT2PO: values backed up a tree of turns, ratios by turn."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kifu.algorithms.at2po import At2Po
from kifu.algorithms.tree_grpo import TreeGrpo
from kifu.credit import BranchPoint, Episode
from kifu.credit.branching import TopScore, TreeExpansion
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Terms, TrajectoryMean

Make = Callable[..., Episode]
Train = Callable[..., Any]


@pytest.fixture
def make_tree(make_known: Make) -> Callable[..., list[Episode]]:
    """The printed tree: root to a (leaves T0 and T1) and to b, which is leaf T2."""

    def make(rewards: Sequence[float] = (1.0, 0.0, 0.0)) -> list[Episode]:
        return [
            make_known([0.0, rewards[0]], id="T0", entropy=[0.4, 0.2]),
            replace(
                make_known([0.0, rewards[1]], id="T1", entropy=[0.4, 0.6]), branch=BranchPoint(parent="T0", turn=1)
            ),
            make_known([rewards[2]], id="T2", entropy=[0.9]),
        ]

    return make


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, [0.144205, 1.414211]),
        ({"node_advantage": "diff_parent"}, [0.529906, 1.270006]),
        ({"node_advantage": "diff_localglobal"}, [1.059812, 3.069917]),
        ({"node_advantage": "vanilla"}, [1.414211, 1.414211]),
        ({"backup": "child_mean"}, [0.353553, 1.414211]),
        ({"backup": "leaf_mean", "node_advantage": "diff_global"}, [0.353553, 1.414211]),
    ],
)
def test_advantages_are_as_printed(
    make_tree: Callable[..., list[Episode]], options: dict[str, Any], first: list[float]
) -> None:
    """V(a) = .144205, V(root) = -.385701; 0.353553 with means; the differences follow."""
    found = At2Po(**options).credit(make_tree(), RewardRules())
    assert found is not None
    np.testing.assert_allclose(found[0].advantages_K, first, atol=3e-6)
    if options.get("node_advantage") != "vanilla":
        assert found[1].advantages_K[0] == found[0].advantages_K[0], "a shared turn has one value"


def test_the_entropy_is_that_of_the_sampled_tokens_where_the_code_is_followed(
    make_tree: Callable[..., list[Episode]],
) -> None:
    """Mean -log pi of .2, .6 and .4, .9 in the place of recorded entropies that say otherwise."""
    nll = ([0.4, 0.2], [0.4, 0.6], [0.9])
    group = [
        replace(
            episode,
            turns=tuple(
                replace(turn, num_tokens=2, logprobs_N=np.array([-value - 0.1, -value + 0.1]), entropy=5.0 * at)
                for at, (turn, value) in enumerate(zip(episode.turns, values, strict=True))
            ),
        )
        for episode, values in zip(make_tree(), nll, strict=True)
    ]
    found = At2Po(node_entropy="sampled").credit(group, RewardRules())
    assert found is not None
    assert found[0].advantages_K[0] == pytest.approx(0.144205, abs=1e-6)


def test_the_turn_loss_and_its_gradient_are_those_of_the_official_run() -> None:
    """Token log-ratios of two turns, their geometric ratios, the pessimistic branch of the second clipped at .997."""
    log_ratio = torch.tensor([0.004, 0.002, -0.01, -0.002, 0.0], dtype=torch.float64)
    logp_N = (log_ratio - 1.0).requires_grad_()
    found = At2Po().objective()(
        Terms(
            logp_N=logp_N,
            behaviour_logp_N=torch.full((5,), -1.0, dtype=torch.float64),
            advantage_N=torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64),
            weight_N=torch.full((5,), 0.2, dtype=torch.float64),
            turn_N=torch.tensor([0, 0, 1, 1, 1]),
            sequence_N=torch.zeros(5, dtype=torch.int64),
        )
    )
    found.total.backward()
    assert found.total.item() == pytest.approx(0.196998, abs=5e-7)
    assert logp_N.grad is not None
    np.testing.assert_allclose(logp_N.grad.numpy(), [-0.2006, -0.2006, 0.0, 0.0, 0.0], atol=5e-5)
    assert float(found.stats["clipped_tokens"]) == 3


@pytest.mark.parametrize("rewards", [(0.0, 0.0, 0.0), (-1.5, -1.5, -1.5)])
def test_a_tree_that_compares_nothing_is_left_out(
    make_tree: Callable[..., list[Episode]], rewards: tuple[float, ...]
) -> None:
    assert At2Po().credit(make_tree(rewards), RewardRules()) is None
    assert At2Po().credit(make_tree()[:1], RewardRules()) is None


def test_a_ragged_tree_with_negative_rewards_is_credited_as_by_recursion(make_known: Make) -> None:
    """A branch of a branch, a turn without tokens and another root; the oracle walks down from the root."""
    shape = [("a", 3, None, 0, -2.0), ("b", 3, "a", 1, 0.5), ("c", 4, "b", 2, -0.25), ("d", 2, None, 0, 1.0)]
    entropy = {"a0": 0.3, "a1": 1.1, "a2": 0.0, "b1": 0.8, "b2": 0.6, "c2": 1.7, "c3": 0.2, "d0": 0.9, "d1": 0.4}
    paths = {"a": ["a0", "a1", "a2"], "b": ["a0", "b1", "b2"], "c": ["a0", "b1", "c2", "c3"], "d": ["d0", "d1"]}
    group = [
        replace(
            make_known(
                [0.0] * (count - 1) + [reward],
                id=name,
                tokens=[0 if node == "a1" else 2 for node in paths[name]],
                entropy=[entropy[node] for node in paths[name]],
            ),
            branch=None if parent is None else BranchPoint(parent=parent, turn=turn),
        )
        for name, count, parent, turn, reward in shape
    ]
    rewards = np.array([item[-1] for item in shape])
    leaf = dict(zip("abcd", (rewards - rewards.mean()) / (rewards.std() + 1e-6), strict=True))

    def value(prefix: list[str]) -> float:
        below = [name for name in "abcd" if paths[name][: len(prefix)] == prefix]
        if len(below) == 1 and paths[below[0]] == prefix:
            return float(leaf[below[0]])
        children = list(dict.fromkeys(paths[name][len(prefix)] for name in below))
        weights = [float(np.exp(entropy[child])) for child in children]
        return sum(w * value([*prefix, child]) for w, child in zip(weights, children, strict=True)) / sum(weights)

    for mode in ("node_value", "diff_parent"):
        found = At2Po(node_advantage=mode).credit(group, RewardRules())
        assert found is not None
        for name, credit in zip("abcd", found, strict=True):
            path = paths[name]
            own = [value(path[: at + 1]) for at in range(len(path))]
            above = [value(path[:at]) for at in range(len(path))]
            expected = own if mode == "node_value" else [v - up for v, up in zip(own, above, strict=True)]
            np.testing.assert_allclose(credit.advantages_K, expected, atol=1e-12)


def test_it_differs_from_its_neighbour_on_a_shared_turn(make_tree: Callable[..., list[Episode]]) -> None:
    group = [replace(episode, tree="A") for episode in make_tree()]
    ours, other = At2Po().credit(group, RewardRules()), TreeGrpo().credit(group, RewardRules())
    assert ours is not None
    assert other is not None
    assert ours[0].advantages_K[0] == ours[1].advantages_K[0]
    assert other[0].advantages_K[0] != other[1].advantages_K[0]


def test_turns_of_which_no_entropy_is_known_are_named(make_tree: Callable[..., list[Episode]]) -> None:
    group = make_tree()
    group[1] = replace(group[1], turns=tuple(replace(turn, entropy=None) for turn in group[1].turns))
    with pytest.raises(ArgumentError, match="T1, turn 0: the method needs `behaviour_logprob` or `entropy`"):
        At2Po().credit(group, RewardRules())
    assert At2Po(backup="child_mean").credit(group, RewardRules()) is not None


def test_the_plan_is_ten_chains_and_two_rounds_of_six() -> None:
    method = At2Po()
    assert method.plan.rollout == TreeExpansion(chains=10, rounds=2, picks=6, choice=TopScore(penalty=0.05))
    assert isinstance(method.plan.rollout, TreeExpansion)
    assert method.plan.rollout.total == 22
    assert isinstance(method.reduction, TrajectoryMean)
