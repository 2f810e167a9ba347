"""The numbers of one trajectory at its turn boundaries, what else is known of its turns, and how its end is treated.

Axes: ``K`` turns, ``N`` trained tokens of one turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TypeAlias, assert_never

from kifu.credit.arrays import Doubles, as_doubles, discounts
from kifu.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnFacts:
    """What is known of one turn besides its reward. None: nobody recorded it."""

    num_tokens: int
    """Trained tokens of the turn."""
    state: str | None = None
    """Key of the state before the action; equal keys mean equal states."""
    next_state: str | None = None
    entropy: float | None = None
    """Nats, mean over the turn's sampled tokens."""
    gold_logprob: float | None = None
    """Nats, mean over the gold answer's tokens, given the history before the turn."""
    hindsight_logprob: float | None = None
    """Nats, mean over the turn's tokens, given the history before the turn and how the episode ended."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Reward components paid in this turn, unweighted."""
    tool: str | None = None
    """Names of the executed calls; empty for a turn without one."""
    action: str | None = None
    """What was executed, arguments included: equal texts mean equal actions."""
    calls_tool: bool = True
    """Whether the turn executed a tool call."""
    segment: int = 0
    """Turns that one context held share the number; a compaction or a fork begins another."""
    is_void: bool = False
    """Whether the turn holds neither a call that could be parsed nor a final answer that is complete and not blank."""
    logprobs_N: Doubles | None = None
    """Nats, as recorded when sampling."""
    reference_logprobs_N: Doubles | None = None
    """Nats, under the frozen reference, as computed for the update."""
    entropies_N: Doubles | None = None
    values_N: Doubles | None = None
    """V before each token, from a critic that values tokens."""


_OF_TOKENS = {
    "logprobs_N": "behaviour_logprob",
    "reference_logprobs_N": "reference_logprob",
    "entropies_N": "entropy",
    "values_N": "value",
}
"""Columns over the tokens of a turn, and what one token's number is called where people write or read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPoint:
    """Where the trajectory left another one: turns before ``turn`` are the parent's."""

    parent: str
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episode:
    """Rewards and, where there is a critic, values of one trajectory, and the facts that some methods credit by."""

    rewards_K: Doubles
    """Reward of each turn, paid after its action."""
    terminated: bool
    """True when the future is worth 0; False when it was cut off and is worth ``final_value``."""
    values_K: Doubles | None = None
    """V(h_k) before each turn, under the weights that sampled it."""
    final_value: float | None = None
    """V(h_T) after the last turn. Ignored when the episode terminated."""
    durations_K: Doubles | None = None
    """Task units each turn took, > 0; None means 1 each."""
    id: str = ""
    """Of the trajectory, for messages and for branches that name it."""
    outcome: float | None = None
    """The verdict's reward alone, without anything paid on the way."""
    success: bool | None = None
    turns: tuple[TurnFacts, ...] = ()
    """One a turn, or none at all when only numbers are known."""
    tree: str = ""
    """Equal for trajectories that branched from one root."""
    branch: BranchPoint | None = None
    model_score: float | None = None
    """What a learned reward model says of the whole attempt, as computed for the update."""
    final_gold_logprob: float | None = None
    """As `TurnFacts.gold_logprob`, after the last turn."""

    def __post_init__(self) -> None:
        rewards_K = as_doubles(self.rewards_K, name="rewards")
        object.__setattr__(self, "rewards_K", rewards_K)
        if self.values_K is not None:
            object.__setattr__(self, "values_K", as_doubles(self.values_K, name="values"))
            if len(self.values_K) != rewards_K.size:
                raise ArgumentError(
                    f"{len(self.values_K)} values for {rewards_K.size} turns; V(h_T) goes into `final_value`"
                )
        if self.turns and len(self.turns) != rewards_K.size:
            raise ArgumentError(f"{self.place()}: facts of {len(self.turns)} turns for {rewards_K.size} rewards")
        if self.durations_K is not None:
            discounts(self.durations_K, gamma=1.0, count=rewards_K.size)
            object.__setattr__(self, "durations_K", as_doubles(self.durations_K, name="durations"))
        if self.final_value is not None and not isfinite(self.final_value):
            raise ArgumentError(f"final_value must be finite, found {self.final_value}; None means nobody computed it")

    @property
    def boundary(self) -> float:
        """Worth of what follows the last turn: 0 only when the episode terminated.

        Raises:
            ArgumentError: the episode was cut and nobody computed V(h_T).
        """
        if self.terminated:
            return 0.0
        if self.final_value is None:
            raise ArgumentError(
                f"{self.place()}: it was cut and has no `final_value`. Record V(h_T), or treat cuts as "
                "`exclude` or `terminal`."
            )
        return self.final_value

    @property
    def num_turns(self) -> int:
        """K."""
        return int(self.rewards_K.size)

    @property
    def lengths_K(self) -> tuple[int, ...]:
        """Trained tokens of every turn."""
        return tuple(turn.num_tokens for turn in self.facts("num_tokens"))

    def facts(self, needed: str) -> tuple[TurnFacts, ...]:
        """The turns' facts.

        Args:
            needed: field of `TurnFacts` that the caller reads.

        Raises:
            ArgumentError: a turn lacks it.
        """
        if len(self.turns) != self.num_turns:
            raise ArgumentError(
                f"{self.place()}: the method needs `{needed}` of every turn, and nothing is known of them"
            )
        for at, turn in enumerate(self.turns):
            if getattr(turn, needed) is None:
                raise self.lacking(needed, turn=at)
        return self.turns

    def place(self, turn: int | None = None) -> str:
        """Where something is, for messages."""
        return f"trajectory {self.id or 'without an id'}" + ("" if turn is None else f", turn {turn}")

    def lacking(self, *needed: str, turn: int | None = None) -> ArgumentError:
        """What to raise where a method needs one of some fields and has none, each by the name users know."""
        names = " or ".join(f"`{_OF_TOKENS.get(name, name)}`" for name in needed)
        of_tokens = " of every token" if any(name in _OF_TOKENS for name in needed) else ""
        return ArgumentError(
            f"{self.place(turn)}: the method needs {names}{of_tokens}, which nobody recorded; add it, or choose a "
            "method that does without"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """A cut episode goes on being worth V(h_T)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclude:
    """A cut episode is not trained on and enters no statistic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A cut counts as the end: the limit belongs to the task, or the bias is accepted."""


CutTreatment: TypeAlias = Bootstrap | Exclude | Terminal


def treat_cut(episode: Episode, treatment: CutTreatment) -> Episode | None:
    """Apply the experiment's treatment of a collector's cut; an episode that terminated is returned as it is.

    Returns:
        The episode to train on, or None when it is excluded.

    Raises:
        ArgumentError: `Bootstrap` without a final value.
    """
    if episode.terminated:
        return episode
    match treatment:
        case Exclude():
            return None
        case Terminal():
            return replace(episode, terminated=True, final_value=None)
        case Bootstrap():
            _ = episode.boundary
            return episode
        case _ as unreachable:
            assert_never(unreachable)
