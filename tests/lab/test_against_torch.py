"""The objectives that train, summed over every path of a small world, have the exact gradient of J."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kifu.credit import Doubles, discounted_sum
from kifu.lab import PathTable, World, enumerate_paths, exact_gradient, path_probabilities
from kifu.objectives import (
    ImportanceRatio,
    PolicyObjective,
    ScoreFunction,
    SequenceRatio,
    Surrogate,
    Terms,
    log_distribution,
)


def _gradient(table: PathTable, logits_RA: Doubles, behaviour_RA: Doubles, surrogate: Surrogate) -> Doubles:
    """Every path weighted by its probability under the behaviour policy, as an infinite batch would hold it."""
    leaf_RA = torch.tensor(logits_RA, requires_grad=True)
    allowed_RA = torch.tensor(table.allowed_RA)
    rows = [row for path in table.paths for row in path.rows_T]
    chosen = [action for path in table.paths for action in path.actions_T]
    sequence = [at for at, path in enumerate(table.paths) for _ in path.rows_T]

    def logp(table_RA: Tensor) -> Tensor:
        return log_distribution(table_RA, allowed_NV=allowed_RA).logp_NV[rows, chosen]

    probability_P = path_probabilities(table, behaviour_RA)
    per_token = isinstance(surrogate, ScoreFunction)
    weight = [
        probability / (1 if per_token else len(path.rows_T))
        for path, probability in zip(table.paths, probability_P, strict=True)
        for _ in path.rows_T
    ]
    credit = [discounted_sum(path.rewards_T, gamma=1.0) for path in table.paths for _ in path.rows_T]
    terms = Terms(
        logp_N=logp(leaf_RA),
        behaviour_logp_N=logp(torch.tensor(behaviour_RA)),
        advantage_N=torch.tensor(credit, dtype=torch.float64),
        weight_N=torch.tensor(weight, dtype=torch.float64),
        turn_N=torch.arange(len(rows)),
        sequence_N=torch.tensor(sequence),
    )
    PolicyObjective(surrogate=surrogate)(terms).total.backward()
    assert leaf_RA.grad is not None
    found: Doubles = -leaf_RA.grad.numpy()
    return found


def test_the_score_function_on_policy(doors: World[tuple[str, bool, bool]]) -> None:
    """REINFORCE as it trains, through the sampling transform with its mask."""
    table = enumerate_paths(doors, max_steps=3)
    logits_RA = np.random.default_rng(0).normal(size=table.allowed_RA.shape)
    found_RA = _gradient(table, logits_RA, logits_RA, ScoreFunction())
    np.testing.assert_allclose(found_RA, exact_gradient(table, logits_RA, gamma=1.0), rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_sequence_product_ratio_off_policy(doors: World[tuple[str, bool, bool]], seed: int) -> None:
    """Data of another policy, reweighted by the true ratio of the whole sequence."""
    table = enumerate_paths(doors, max_steps=3)
    make = np.random.default_rng(seed)
    logits_RA, behaviour_RA = make.normal(size=(2, *table.allowed_RA.shape))
    surrogate = ImportanceRatio(level=SequenceRatio(aggregation="product"))
    found_RA = _gradient(table, logits_RA, behaviour_RA, surrogate)
    np.testing.assert_allclose(found_RA, exact_gradient(table, logits_RA, gamma=1.0), rtol=0, atol=1e-10)
