"""What an algorithm is: a frozen value that composes credit, objective, reduction, filter and data source, with a card.

Axes: ``K`` turns of one trajectory, ``N`` trained tokens of one turn, ``G`` members of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Protocol, TypeAlias, assert_never, runtime_checkable

import numpy as np
from pydantic import Field

from kifu.credit.arrays import Doubles
from kifu.credit.branching import Independent, RolloutPlan
from kifu.credit.episode import Episode
from kifu.credit.group import PopulationStd, SampleStd, Scale, Unscaled, group_relative, is_degenerate
from kifu.credit.reading import RewardRules
from kifu.credit.returns import discounted_returns
from kifu.credit.scored import NoScores, ScoredFacts
from kifu.credit.selection import KeepInformative, Selection
from kifu.credit.sources import DataSource, FreshRollouts
from kifu.credit.td import gae
from kifu.errors import ArgumentError
from kifu.objectives import ConstantNormalizer, Objective, Reduction, TokenMean, TrajectoryMean, TurnMean
from kifu.records import Bools

ReductionName: TypeAlias = Literal["token", "turn", "trajectory", "sum"]
StdName: TypeAlias = Literal["none", "sample", "population"]
Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000_000)]
CountFromZero: TypeAlias = Annotated[int, Field(ge=0, le=1_000_000_000)]
Epochs: TypeAlias = Count
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Amount: TypeAlias = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
PositiveShare: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Positive: TypeAlias = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
Level: TypeAlias = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
TokenValues: TypeAlias = Literal["unread", "taken", "needed"]
PresumedFact: TypeAlias = Literal["calls_tool", "is_void", "segment"]
DualClip: TypeAlias = Annotated[float, Field(gt=1, le=1e6, allow_inf_nan=False)]
"""Domains of options, checked by `kifu.algorithms.build_algorithm`.

Nothing sensible lies beyond their bounds, and a product of any of them with a reward is finite.
"""


class Feedback(StrEnum):
    """Where the learning signal comes from."""

    DEMONSTRATION = "demonstration"
    PREFERENCE = "preference pair"
    REWARD_MODEL = "reward model"
    JUDGE = "another model's judgement"
    RULE = "rule check"
    OUTCOME = "environment outcome"


class Source(StrEnum):
    """Where the trajectories come from."""

    FIXED = "fixed set"
    FRESH = "fresh rollouts"
    OLDER = "older policy's rollouts"
    REPLAY = "replay buffer"
    CANDIDATES = "candidates at generation only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Answers about a method, printed by ``kifu algorithms ID`` and in every report."""

    name: str
    source: str
    """Paper and equation."""
    feedback: tuple[Feedback, ...]
    data: Source
    decision_unit: str
    """The unit that is credited."""
    turn: str
    """What the method calls a turn."""
    updates: str
    """What is updated: policy, critic, both, nothing."""
    optimization: str
    """Where optimization happens."""
    freshness: str
    """Age and reuse of the data."""
    ratio: str
    """Ratio level and clip; a clip is not a bound, the realised ratio and KL are measured every step."""
    denominator: str
    on_policy: bool
    online: bool
    family: str
    """value-based, policy-based or actor-critic."""
    model_free: bool = True
    delayed_consequences: bool = True
    neighbour: str = ""
    """The nearest other method and the axis on which they differ."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnCredit:
    """Credit of one trajectory."""

    advantages_K: Doubles
    token_advantages_K: tuple[Doubles, ...] | None = None
    """``[K][N]`` where the tokens of a turn differ; then ``advantages_K`` is only what people are shown."""
    kept_K: Bools | None = None
    """False takes a turn out of the loss and out of its denominators; it stays in the statistics of its group."""
    copies: int = 1
    """How often the trajectory stands in the batch."""
    value_targets_K: Doubles | None = None
    """What the critic is regressed on; None without a critic."""
    pair: int | None = None
    """Number of its preference pair within the group; advantages above 0 are the preferred side."""
    left_out: str | None = None
    """Why none of its turns is trained, where the method keeps none."""

    def tokens(self, turn: int, count: int) -> Doubles:
        """``[N]`` advantage of each of a turn's ``count`` trained tokens."""
        if self.token_advantages_K is None:
            return np.full(count, self.advantages_K[turn])
        found = self.token_advantages_K[turn]
        if found.size != count:
            raise ArgumentError(f"turn {turn} has {count} trained tokens and {found.size} advantages")
        return found

    def keeps(self, turn: int) -> bool:
        """Whether the turn is trained."""
        return self.kept_K is None or bool(self.kept_K[turn])


@runtime_checkable
class Algorithm(Protocol):
    """A frozen value. Its fields are its options; the defaults are the published setting."""

    card: ClassVar[Card]

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """Credit every member of a group, or None when the group carries no signal and is left out of the update."""
        ...

    def objective(self) -> Objective:
        """The loss over sampled tokens."""
        ...

    @property
    def reduction(self) -> Reduction:
        """Over what the loss is averaged."""
        ...

    @property
    def plan(self) -> "Plan":
        """How the data is used."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRewards:
    """A method that reads reward components itself, whatever their weights."""

    component: str | None
    """The one it reads; None reads all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How collected data is used."""

    demonstrations: bool = False
    """Trains on scripted traces, by likelihood."""
    epochs: int = 1
    """Optimizer steps over the same rollouts."""
    whiten: bool = False
    """Whether advantages are normalized over the whole batch of the step."""
    whitening: Scale = field(default_factory=lambda: PopulationStd(eps=1e-8))
    """What they are divided by then, after their mean is taken off."""
    needs_value: bool = False
    """Whether the engine must have a critic."""
    token_values: TokenValues = "unread"
    """Whether V before every trained token is read, not before every turn alone; "taken" where it can do without."""
    needs_group: bool = False
    """Whether statistics of a group are taken, so that group_size must be at least 2."""
    selection: Selection = field(default_factory=KeepInformative)
    """Which of the credited groups are trained, and how often."""
    rollout: RolloutPlan = field(default_factory=Independent)
    """How the rollouts of a group come about."""
    token_entropies: bool = False
    """Whether the entropy of every sampled token is kept on record."""
    data: DataSource = field(default_factory=FreshRollouts)
    """Where the trajectories come from."""
    untempered: bool = False
    """Whether the loss takes log-probabilities at temperature 1 over the whole vocabulary, however sampled."""
    needs_reference: bool = False
    """Whether logprobs under the weights the method began with are computed for every trained token."""
    needs_reward_model: bool = False
    """Whether every attempt is scored by a model fitted to preferences before the run."""
    verifiable: bool = False
    """Whether only what a program checked may pay: no learned score, no model's judgement."""
    turn_rewards: TurnRewards | None = None
    """Reward components it reads by itself."""
    refill: int = 1
    """Rounds of sampling at most until as many groups as were asked for have a signal."""
    scores: ScoredFacts = field(default_factory=NoScores)
    """What a model tells of every finished rollout before it is credited."""
    signal: str = "returns that differ"
    """What a group must hold to be trained; people read it where a group is left out."""
    presumed: tuple[PresumedFact, ...] = ()
    """Facts of turns that it reads and that records always have, but a trajectory written by hand may leave out."""


def options_of(algorithm: Algorithm) -> dict[str, object]:
    """Every option of an algorithm with its value, for the protocol and the report."""
    return {item.name: getattr(algorithm, item.name) for item in fields(algorithm)}  # type: ignore[arg-type]


def reduction_of(name: ReductionName) -> Reduction:
    """The reduction an option names; ``sum`` is the mean over trajectories of sums over tokens."""
    match name:
        case "token":
            return TokenMean()
        case "turn":
            return TurnMean()
        case "trajectory":
            return TrajectoryMean()
        case "sum":
            return ConstantNormalizer(tokens=1.0)
        case _ as unreachable:
            assert_never(unreachable)


def scale_of(name: StdName, *, eps: float) -> Scale:
    """What a centred reward is divided by, as an option names it."""
    match name:
        case "none":
            return Unscaled()
        case "sample":
            return SampleStd(eps=eps)
        case "population":
            return PopulationStd(eps=eps)
        case _ as unreachable:
            assert_never(unreachable)


def unless_silent(credits: list[TurnCredit]) -> list[TurnCredit] | None:
    """The credits, or None when every advantage of the group is exactly 0: nothing would move but denominators."""
    for credit in credits:
        parts = (credit.advantages_K,) if credit.token_advantages_K is None else credit.token_advantages_K
        if any(bool(part.any()) for part in parts):
            return credits
    return None


def token_credit(advantages_KN: Sequence[Doubles], *, values_KN: Sequence[Doubles] | None = None) -> TurnCredit:
    """Credit whose tokens differ inside a turn; people are shown its mean.

    Args:
        advantages_KN: of every trained token.
        values_KN: V before every trained token. The critic's target of a turn is then A + V at its first token; a turn
            without tokens is left out.
    """
    targets_K, kept_K = None, None
    if values_KN is not None:
        kept_K = np.array([a_N.size > 0 for a_N in advantages_KN], dtype=np.bool_)
        pairs = zip(advantages_KN, values_KN, strict=True)
        targets_K = np.array([a_N[0] + v_N[0] if a_N.size else 0.0 for a_N, v_N in pairs], dtype=np.float64)
    return TurnCredit(
        advantages_K=np.array([a_N.mean() if a_N.size else 0.0 for a_N in advantages_KN], dtype=np.float64),
        token_advantages_K=tuple(advantages_KN),
        kept_K=kept_K,
        value_targets_K=targets_K,
    )


def outcome_returns(group: Sequence[Episode], rules: RewardRules) -> list[float]:
    """``[G]`` return of every member from its first turn on, a bootstrapped cut's V(h_T) included."""
    return [float(returns_to_go(episode, rules)[0]) for episode in group]


def spread(group: Sequence[Episode], advantages: Sequence[float | None]) -> list[TurnCredit]:
    """One advantage a member, the same for every turn of it."""
    return [
        TurnCredit(advantages_K=np.full(episode.num_turns, float(advantage or 0.0)))
        for episode, advantage in zip(group, advantages, strict=True)
    ]


def relative_credit(group: Sequence[Episode], rules: RewardRules, *, scale: Scale) -> list[TurnCredit] | None:
    """Every turn has its member's return relative to the group; None when all returns are equal."""
    returns = outcome_returns(group, rules)
    return None if is_degenerate(returns) else spread(group, group_relative(returns, scale=scale))


def returns_to_go(episode: Episode, rules: RewardRules) -> Doubles:
    """``[K]`` return from every turn on, a bootstrapped cut's V(h_T) included."""
    return discounted_returns(
        episode.rewards_K, gamma=rules.gamma, final_value=episode.boundary, durations_K=episode.durations_K
    )


def gae_credit(group: Sequence[Episode], rules: RewardRules, *, lam: float) -> list[TurnCredit]:
    """Advantages by GAE over turns; the critic's target is A_k + V(h_k)."""
    found = []
    for episode in group:
        advantages_K = gae(episode, gamma=rules.gamma, lam=lam)
        assert episode.values_K is not None, "gae refuses an episode without values"
        found.append(TurnCredit(advantages_K=advantages_K, value_targets_K=advantages_K + episode.values_K))
    return found
