"""DPO: who stands in a pair, the mean over pairs, and where it leaves regression on the same records."""

from collections.abc import Callable
from math import exp, log1p

import numpy as np
import pytest
import torch

from kifu.algorithms import TurnCredit, build_algorithm
from kifu.credit import Episode, StoredPairs
from kifu.credit.reading import RewardRules
from kifu.objectives import Terms
from kifu.training.update.crediting import Member, credit_groups

Known = Callable[..., Episode]


def credits(group: list[Episode], **options: object) -> list[TurnCredit] | None:
    return build_algorithm("dpo", options).credit(group, RewardRules())


def test_the_best_and_the_worst_are_a_pair_and_the_rest_is_left_out(make_known: Known) -> None:
    group = [
        make_known([0.0] * turns, id=name, outcome=worth)
        for turns, name, worth in [(2, "a", 0.5), (1, "b", 1.0), (3, "c", 0.0), (1, "d", None)]
    ]

    found = credits(group)

    assert found is not None
    assert [credit.pair for credit in found] == [None, 0, 0, None]
    assert [credit.advantages_K.tolist() for credit in found] == [[0.0] * 2, [1.0], [-1.0] * 3, [0.0]]
    assert [credit.keeps(0) for credit in found] == [False, True, True, False]


@pytest.mark.parametrize("outcomes", [[1.0], [0.5, 0.5], [None, None], [-1.0, -1.0, -1.0]])
def test_without_a_preference_there_is_nothing_to_learn(make_known: Known, outcomes: list[float | None]) -> None:
    assert credits([make_known([0.0], id=str(at), outcome=worth) for at, worth in enumerate(outcomes)]) is None


def test_rewards_further_apart_than_the_margin(make_known: Known) -> None:
    group = [make_known([0.0], id="a", outcome=1.0), make_known([0.0], id="b", outcome=0.7)]

    assert credits(group, margin=0.5) is None
    assert credits(group, margin=0.2) is not None


def test_an_update_in_loops_over_pairs(make_known: Known) -> None:
    """Two groups, three pairs, sums over sides, mean over pairs; at policy = reference every pair costs log 2."""
    groups = [
        [
            make_known([0.0, 1.0], tokens=[1, 2], id="a", outcome=1.0),
            make_known([0.0], tokens=[2], id="b", outcome=0.0),
        ],
        [make_known([0.0], tokens=[size], id=f"c{size}", outcome=float(size)) for size in (1, 2, 3, 4)],
    ]
    members = [
        [Member(episode=one, turns_N=np.repeat(np.arange(one.num_turns), one.lengths_K)) for one in group]
        for group in groups
    ]
    algorithm = build_algorithm("dpo", {"beta": 0.5})

    update = credit_groups(members, algorithm=algorithm, rules=RewardRules(), seed=0)

    made = [one for group in update.groups for one in group.members]
    assert [one.credit.pair for one in made] == [0, 0, 1, 2, 2, 1]
    assert {weight for one in made for weight in one.weights_N.tolist()} == {1 / 3}
    sizes = [one.weights_N.size for one in made]
    random = np.random.default_rng(0)
    logp, reference = random.normal(-1.0, 0.3, sum(sizes)), random.normal(-1.0, 0.3, sum(sizes))
    terms = Terms(
        logp_N=torch.tensor(logp),
        behaviour_logp_N=torch.zeros(sum(sizes)),
        advantage_N=torch.tensor(np.concatenate([one.advantages_N for one in made])),
        weight_N=torch.tensor(np.concatenate([one.weights_N for one in made])),
        turn_N=torch.arange(sum(sizes)),
        sequence_N=torch.arange(sum(sizes)),
        reference_logp_N=torch.tensor(reference),
        pair_N=torch.tensor(np.repeat([one.credit.pair or 0 for one in made], sizes)),
    )
    ends = np.cumsum(sizes)
    ratios = [float((logp - reference)[end - size : end].sum()) for end, size in zip(ends, sizes, strict=True)]
    margins = [ratios[0] - ratios[1], ratios[5] - ratios[2], ratios[4] - ratios[3]]

    found = algorithm.objective()(terms).total.item()

    assert found == pytest.approx(sum(log1p(exp(-0.5 * margin)) for margin in margins) / 3, abs=1e-12)


def test_it_sees_an_order_where_regression_sees_rewards(make_known: Known) -> None:
    near = [make_known([0.0], id="a", outcome=0.6), make_known([0.0], id="b", outcome=0.5)]
    far = [make_known([0.0], id="a", outcome=9.0), make_known([0.0], id="b", outcome=0.0)]

    one, two = credits(near), credits(far)
    assert one is not None
    assert two is not None
    assert [credit.advantages_K.tolist() for credit in one] == [credit.advantages_K.tolist() for credit in two]
    regression = [
        build_algorithm("offline_awr").credit([make_known([value], id=str(value)) for value in pair], RewardRules())
        for pair in ([0.6, 0.5], [9.0, 0.0])
    ]
    assert regression[0] is not None
    assert regression[1] is not None
    assert regression[0][0].advantages_K.tolist() != regression[1][0].advantages_K.tolist()


def test_it_learns_from_records_relative_to_a_reference() -> None:
    plan = build_algorithm("dpo").plan
    assert (plan.data, plan.needs_reference) == (StoredPairs(), True)
