"""Episodes made from numbers, and losses of a few tokens."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
import pytest
import torch

from kifu.algorithms import Algorithm
from kifu.credit import Episode, TurnFacts
from kifu.credit.reading import RewardRules
from kifu.objectives import Loss, PolicyObjective, Terms
from kifu.training.update.crediting import Credited, CreditedUpdate, Member, credit_groups


@pytest.fixture
def make_episode() -> Callable[..., Episode]:
    """An episode from rewards and, where given, values, durations and V(h_T) of a cut."""

    def make(
        rewards: Sequence[float],
        *,
        values: Sequence[float] | None = None,
        cut_worth: float | None = None,
        durations: Sequence[float] | None = None,
    ) -> Episode:
        return Episode(
            rewards_K=np.array(rewards, dtype=np.float64),
            terminated=cut_worth is None,
            values_K=None if values is None else np.array(values, dtype=np.float64),
            final_value=cut_worth,
            durations_K=None if durations is None else np.array(durations, dtype=np.float64),
        )

    return make


@pytest.fixture
def make_known() -> Callable[..., Episode]:
    """An episode with facts of its turns: each keyword is one value a turn, or one of the episode's own fields."""

    def make(
        rewards: Sequence[float],
        /,
        *,
        id: str = "T1",
        tokens: Sequence[int] | None = None,
        values: Sequence[float] | None = None,
        outcome: float | None = None,
        success: bool | None = None,
        final_gold: float | None = None,
        cut_worth: float | None = None,
        **facts: Sequence[object],
    ) -> Episode:
        lengths = [1] * len(rewards) if tokens is None else tokens
        known = [
            TurnFacts(num_tokens=length, **{name: column[at] for name, column in facts.items()})  # type: ignore[arg-type]
            for at, length in enumerate(lengths)
        ]
        return Episode(
            rewards_K=np.array(rewards, dtype=np.float64),
            terminated=cut_worth is None,
            final_value=cut_worth,
            values_K=None if values is None else np.array(values, dtype=np.float64),
            id=id,
            outcome=outcome,
            success=success,
            turns=tuple(known),
            final_gold_logprob=final_gold,
        )

    return make


@dataclass(frozen=True)
class Told:
    """An attempt in plain numbers, for loops that know nothing of episodes."""

    rewards: list[float]
    values: list[float]
    tokens: list[int]


@pytest.fixture
def ragged() -> list[list[Told]]:
    """Groups of two, of one and of equal rewards; rewards below 0, and turns without a trained token."""
    return [
        [Told([0.0, 0.5, 1.0], [0.2, 0.4, 0.7], [2, 1, 3]), Told([0.0, -1.0], [0.3, -0.2], [0, 4])],
        [Told([-1.0], [0.1], [2])],
        [Told([0.5], [0.9], [1]), Told([0.5, 0.0, 0.0], [-0.1, 0.0, 0.2], [1, 2, 0])],
    ]


@pytest.fixture
def told_groups(make_known: Callable[..., Episode], ragged: list[list[Told]]) -> list[list[Episode]]:
    """The same as episodes, each with the sum of its rewards as the task's verdict."""
    return [
        [
            make_known(
                one.rewards, values=one.values, tokens=one.tokens, outcome=sum(one.rewards), id=f"g{at}m{member}"
            )
            for member, one in enumerate(group)
        ]
        for at, group in enumerate(ragged)
    ]


@pytest.fixture
def loss_of() -> Callable[..., Loss]:
    """What a method's objective makes of log-ratios and advantages, every token weighing the same."""

    def make(
        algorithm: Algorithm, log_ratios: Sequence[float], advantages: Sequence[float], *, turns: Sequence[int]
    ) -> Loss:
        count = len(log_ratios)
        behaviour_N = torch.full((count,), -1.0, dtype=torch.float64)
        objective = algorithm.objective()
        if objective.needs_entropy:
            raise AssertionError("these tests hold no entropies")
        return objective(
            Terms(
                logp_N=(behaviour_N + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_(),
                behaviour_logp_N=behaviour_N,
                advantage_N=torch.tensor(advantages, dtype=torch.float64),
                weight_N=torch.full((count,), 1.0 / count, dtype=torch.float64),
                turn_N=torch.tensor(turns),
                sequence_N=torch.zeros(count, dtype=torch.int64),
            )
        )

    return make


@dataclass(frozen=True)
class Trained:
    """What one update does with groups of episodes: weights and advantages by token, loss and its gradient."""

    update: CreditedUpdate
    weights: list[list[float]]
    """Of every trained trajectory's tokens, groups one after the other; copies are in the weight."""
    advantages: list[list[float]]
    loss: float
    gradient: list[list[float]]
    """With respect to the log-probability of every token."""
    stats: dict[str, float]


def _pairs(members: Sequence[tuple[Member, Credited]]) -> torch.Tensor | None:
    """``[N]`` number of the preference pair of every token; a member in none has weight 0 and may stand anywhere."""
    if all(one.credit.pair is None for _, one in members):
        return None
    found = [one.credit.pair or 0 for _, one in members]
    return torch.tensor(np.repeat(np.array(found, dtype=np.int64), [member.turns_N.size for member, _ in members]))


@pytest.fixture
def train_on() -> Callable[..., Trained]:
    """Credit an update and take its loss at ratios of the reader's choice; lengths of turns are those of the facts."""

    def train(
        algorithm: Algorithm,
        *groups: Sequence[Episode],
        ratio: Callable[[int], float] = lambda token: 1.0,
        rules: RewardRules | None = None,
        seed: int = 0,
    ) -> Trained:
        members = [
            [Member(episode=one, turns_N=np.repeat(np.arange(one.num_turns), one.lengths_K)) for one in group]
            for group in groups
        ]
        update = credit_groups(members, algorithm=algorithm, rules=rules or RewardRules(), seed=seed)
        pairs = [
            (member, credited)
            for group, found in zip(members, update.groups, strict=True)
            for member, credited in zip(group if found.members else (), found.members, strict=True)
        ]
        sizes = [member.turns_N.size for member, _ in pairs]
        log_ratio = [log(ratio(token)) for token in range(sum(sizes))]
        logp_N = (torch.tensor(log_ratio, dtype=torch.float64) - 1.0).requires_grad_()
        sequence_N = np.repeat(np.arange(len(pairs)), sizes)
        turn_N = np.concatenate([np.empty(0, np.int64), *(member.turns_N for member, _ in pairs)])
        _, turns = np.unique(sequence_N * 1000 + turn_N, return_inverse=True)
        terms = Terms(
            logp_N=logp_N,
            behaviour_logp_N=torch.full_like(logp_N, -1.0),
            advantage_N=torch.tensor([a for _, one in pairs for a in one.advantages_N], dtype=torch.float64),
            weight_N=torch.tensor([w for _, one in pairs for w in one.weights_N], dtype=torch.float64),
            turn_N=torch.tensor(turns, dtype=torch.int64),
            sequence_N=torch.tensor(sequence_N, dtype=torch.int64),
            reference_logp_N=torch.full_like(logp_N, -1.0),
            pair_N=_pairs(pairs),
        )
        objective = algorithm.objective()
        if isinstance(objective, PolicyObjective):
            objective = replace(objective, entropy=None, value=None)
        if not pairs:
            return Trained(update=update, weights=[], advantages=[], loss=0.0, gradient=[], stats={})
        found = objective(terms)
        (gradient_N,) = torch.autograd.grad(found.total, logp_N)
        return Trained(
            update=update,
            weights=[one.weights_N.tolist() for _, one in pairs],
            advantages=[one.advantages_N.tolist() for _, one in pairs],
            loss=found.total.item(),
            gradient=[part.tolist() for part in gradient_N.split(sizes)] if sizes else [],
            stats={name: float(value) for name, value in found.stats.items()},
        )

    return train


@pytest.fixture
def make_attempt() -> Callable[..., Episode]:
    """An attempt with a verdict of ``reward`` and turns of given lengths; some of them void, some with values."""

    def make(
        reward: float,
        lengths: Sequence[int],
        *,
        void: Collection[int] = (),
        values: Sequence[float] | None = None,
        token_values: Sequence[Sequence[float]] | None = None,
        name: str = "T",
    ) -> Episode:
        rewards_K = np.zeros(len(lengths))
        rewards_K[-1] = reward
        return Episode(
            rewards_K=rewards_K,
            terminated=True,
            values_K=None if values is None else np.array(values, dtype=np.float64),
            id=name,
            outcome=reward,
            turns=tuple(
                TurnFacts(
                    num_tokens=length,
                    is_void=at in void,
                    values_N=None if token_values is None else np.array(token_values[at], dtype=np.float64),
                )
                for at, length in enumerate(lengths)
            ),
        )

    return make
