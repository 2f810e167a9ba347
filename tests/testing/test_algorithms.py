"""Every method keeps the contract, and the checker finds every way to break it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from kifu.algorithms import ALGORITHMS, Algorithm, Card, Plan, TurnCredit, build_algorithm
from kifu.algorithms.actor_critic import ActorCritic
from kifu.algorithms.grpo import Grpo
from kifu.algorithms.reinforce import Reinforce
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import EntropyBonus, Loss, Objective, PolicyObjective, Reduction, Terms
from kifu.testing import AlgorithmCheckError, check_algorithm

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("grpo", {"std": "none", "average": "token"}),
    ("grpo", {"average": "turn"}),
    ("grpo", {"average": "sum", "std": "population"}),
    ("ppo", {"value_clip": 0.2, "whiten": False}),
    ("reinforce", {"baseline": "others"}),
    ("rlvr", {"baseline": "critic", "beta": 0.1}),
    ("rlvr", {"beta": 0.1, "std": "none", "average": "trajectory"}),
]
"""Settings that take another path than the defaults."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_keeps_the_contract(name: str) -> None:
    told = check_algorithm(build_algorithm(name))

    assert len(told) == 8
    assert not any("not checked" in line for line in told)
    [still] = [line for line in told if "nothing differs" in line or "whatever they earn" in line]
    plan = build_algorithm(name).plan
    assert ("the critic" in still) == (plan.needs_value and not plan.needs_group)
    if "the critic" in still:
        assert any("equal rewards" in note and "critic" in note for note in ALGORITHMS[name].card.notes)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_other_settings_keep_it_too(name: str, options: dict[str, Any]) -> None:
    assert len(check_algorithm(build_algorithm(name, options), seed=1)) == 8


Credits = list[TurnCredit] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstIsBest(Grpo):
    """Pays whoever stands first."""

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> Credits:
        found = Grpo.credit(self, group, rules)
        return found and [replace(found[0], advantages_K=found[0].advantages_K + 1.0), *found[1:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful(Grpo):
    """Divides by a spread of 0."""

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> Credits:
        rewards = np.array([float(episode.rewards_K.sum()) for episode in group])
        if not group:
            return None
        with np.errstate(invalid="ignore"):
            relative = (rewards - rewards.mean()) / rewards.std()
        return [TurnCredit(advantages_K=np.full(e.num_turns, a)) for e, a in zip(group, relative, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimist(Grpo):
    """Finds something good in a group that compares nothing."""

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> Credits:
        found = Grpo.credit(self, group, rules)
        return found or [TurnCredit(advantages_K=np.full(episode.num_turns, 0.1)) for episode in group]


_SEEN: list[int] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembers(Grpo):
    """Keeps a count outside of what the loop saves."""

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> Credits:
        found = Grpo.credit(self, group, rules)
        _SEEN.append(len(group))
        return found and [replace(item, advantages_K=item.advantages_K * len(_SEEN)) for item in found]


@dataclass(kw_only=True)
class Loose:
    """An option may be set afterwards."""

    card: ClassVar[Card] = Grpo.card
    clip_low: float = 0.2

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> Credits:
        return Grpo().credit(group, rules)

    def objective(self) -> Objective:
        return Grpo().objective()

    @property
    def reduction(self) -> Reduction:
        return Grpo().reduction

    @property
    def plan(self) -> Plan:
        return Grpo().plan


@dataclass(frozen=True)
class Broken:
    """GRPO's loss with something done to it."""

    kind: str
    needs_entropy: bool = False

    def __call__(self, terms: Terms) -> Loss:
        """Sum it, wrongly."""
        inner = PolicyObjective(surrogate=Grpo().objective().surrogate)  # type: ignore[attr-defined]
        match self.kind:
            case "mean":
                loss = inner(terms)
                return Loss(total=loss.total / terms.logp_N.numel(), stats=loss.stats)
            case "multiply":
                gain_N = (terms.logp_N - terms.behaviour_logp_N).exp() * terms.advantage_N * terms.weight_N
                return Loss(total=-gain_N.sum(), stats=inner(terms).stats)
            case "lengths":
                count = terms.logp_N.new_zeros(int(terms.sequence_N.max()) + 1)
                count = count.index_add(0, terms.sequence_N, torch.ones_like(terms.logp_N))
                return inner(replace(terms, advantage_N=terms.advantage_N / count[terms.sequence_N]))
            case _:
                loss = inner(replace(terms, behaviour_logp_N=terms.behaviour_logp_N - 0.3))
                return Loss(total=loss.total, stats=loss.stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithLoss(Grpo):
    """GRPO's credit under a broken loss."""

    kind: str = "mean"

    def objective(self) -> Objective:
        return Broken(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restless(Grpo):
    """Keeps silent groups in the batch, where an entropy bonus goes on pushing."""

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> Credits:
        found = Grpo.credit(self, group, rules)
        return found or [TurnCredit(advantages_K=np.zeros(episode.num_turns)) for episode in group]

    def objective(self) -> Objective:
        inner = Grpo.objective(self)
        assert isinstance(inner, PolicyObjective)
        return replace(inner, entropy=EntropyBonus(coefficient=0.1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grateful(Reinforce):
    """Compares nobody, and pays for coming even where nothing was earned."""

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> Credits:
        found = Reinforce.credit(self, group, rules)
        return found and [replace(item, advantages_K=item.advantages_K + 0.5) for item in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eager(ActorCritic):
    """A critic's targets lie a little above what it was right about."""

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> Credits:
        found = ActorCritic.credit(self, group, rules)
        assert found is not None
        return [
            replace(item, value_targets_K=None if item.value_targets_K is None else item.value_targets_K + 0.1)
            for item in found
        ]


class Fading:
    """A loss that gets smaller every time it is taken."""

    taken = 0
    needs_entropy = False

    def __call__(self, terms: Terms) -> Loss:
        """Count, outside of what the loop saves."""
        Fading.taken += 1
        loss = PolicyObjective()(terms)
        return Loss(total=loss.total / Fading.taken, stats=loss.stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fades(Grpo):
    """Its credit is sound; its loss remembers."""

    def objective(self) -> Objective:
        return Fading()


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle(Grpo):
    """Learns from nothing."""

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> Credits:
        return None

    @property
    def plan(self) -> Plan:
        return Plan()


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (FirstIsBest(), "other order"),
        (Forgetful(), "no nan|advantages of 0"),
        (Optimist(), "advantages of 0, or None"),
        (Remembers(), "keeps something between calls"),
        (Loose(), "frozen"),
        (WithLoss(kind="mean"), "the same gradient with"),
        (WithLoss(kind="multiply"), "loss of .* with padding"),
        (WithLoss(kind="lengths"), "padding that holds nan"),
        (WithLoss(kind="shifted"), "ratio of 1"),
        (Restless(), "no step on groups in which nothing differs"),
        (Grateful(), "advantages of 0, or None"),
        (Eager(), "no step on groups in which nothing differs"),
        (Fades(), "from a checkpoint"),
        (Idle(), "a gradient from groups"),
    ],
    ids=lambda item: item if isinstance(item, str) else f"{type(item).__name__} {getattr(item, 'kind', '')}",
)
def test_a_broken_method_is_found_and_told_how(method: Algorithm, told: str) -> None:
    with pytest.raises(AlgorithmCheckError, match=told):
        check_algorithm(method)
