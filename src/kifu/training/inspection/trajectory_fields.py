"""The fields of a document in which a user writes trajectories down, and what each may hold."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Logprob: TypeAlias = Annotated[float, Field(le=0, ge=-500)]
"""Nats. Below -500 nobody samples, and a ratio of two such numbers is no number."""
Amount: TypeAlias = Annotated[float, Field(ge=-1e9, le=1e9)]
"""Rewards, values and the like. Their squares and sums stay finite, and nothing sensible is larger."""
Entropy: TypeAlias = Annotated[float, Field(ge=0, le=1e9)]
"""Nats."""


class Part(BaseModel):
    """Base of every level of the document: no unknown fields, no text for numbers, only finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class GivenToken(Part):
    """One token of a turn."""

    logprob: Logprob | None = None
    """Nats, under the weights being trained."""
    behaviour_logprob: Logprob | None = None
    """Nats, as recorded when sampling."""
    reference_logprob: Logprob | None = None
    """Nats, under a frozen reference."""
    entropy: Entropy | None = None
    value: Amount | None = None
    """V before the token."""
    observation: bool = False
    """Whether somebody else than the policy wrote it; it is never trained."""


class GivenBranch(Part):
    """Where a trajectory left another one."""

    parent: str | None = None
    turn: Annotated[int, Field(ge=0)] = 0


class GivenTurn(Part):
    """One turn."""

    state: str | None = None
    next_state: str | None = None
    """That of the turn after it, where there is one."""
    reward: Amount = 0.0
    """Paid in this turn, apart from the trajectory's own reward."""
    rewards: dict[str, Amount] = {}
    """Components by name; they are paid with the weights in ``components`` and methods may read them."""
    value: Amount | None = None
    potential: Amount | None = None
    entropy: Entropy | None = None
    gold_logprob: Logprob | None = None
    hindsight_logprob: Logprob | None = None
    """Nats, mean over the turn's tokens, given the history before the turn and how the episode ended."""
    segment: Annotated[int, Field(ge=0)] = 0
    """Turns that one context held share the number."""
    duration: Annotated[float, Field(gt=0)] = 1.0
    tool: str | None = None
    """Names of the executed calls; empty for a turn without one."""
    action: str | None = None
    """What was executed, arguments included: equal texts mean equal actions."""
    calls_tool: bool | None = None
    """None: what ``tool`` says, and True where it says nothing."""
    is_void: bool = False
    tokens: list[GivenToken] | None = None
    """None: nothing is known of them, and the turn stands for one token."""

    @property
    def sampled(self) -> list[GivenToken]:
        """Tokens the policy wrote."""
        return [GivenToken()] if self.tokens is None else [token for token in self.tokens if not token.observation]


class GivenTrajectory(Part):
    """One trajectory."""

    id: Annotated[str, Field(min_length=1)]
    task: str | None = None
    reward: Amount | None = None
    """The verdict's reward, paid once, in the last turn. None: the verifier could not tell."""
    success: bool | None = None
    outcome: str | None = None
    """A stop reason; None counts as an end by the task."""
    tree: str | None = None
    branch: GivenBranch = GivenBranch()
    final_value: Amount | None = None
    final_potential: Amount | None = None
    final_gold_logprob: Logprob | None = None
    model_score: Amount | None = None
    """What a learned reward model says of it."""
    policy_version: Annotated[int, Field(ge=0)] | None = None
    turns: Annotated[list[GivenTurn], Field(min_length=1)]


class GivenGroup(Part):
    """Attempts at one task."""

    task: str = ""
    trajectories: Annotated[list[GivenTrajectory], Field(min_length=1)]


class Given(Part):
    """The document."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    components: dict[str, Amount] = {}
    """Weight of each reward component; one that is not named is not paid."""
    shaping: bool = False
    on_truncation: Literal["exclude", "terminal", "bootstrap"] = "bootstrap"
    """What a trajectory that the collector cut is worth; without ``final_value`` it is excluded."""
    groups: Annotated[list[GivenGroup], Field(min_length=1)]
    options: dict[str, Any] = {}
    """Of the method."""
