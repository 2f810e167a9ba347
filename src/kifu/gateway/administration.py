"""Bodies of calls that open, judge and seal rollouts."""

from typing import Literal

from pydantic import Field

from kifu.gateway.wire.contract import Strict


class Opening(Strict):
    """Opens a rollout."""

    task: str = Field(min_length=1, max_length=512)
    family: str = ""
    split: str = "train"
    seed: int = 0
    step: int = Field(default=0, ge=0)
    group: int = Field(default=0, ge=0)
    member: int = Field(default=0, ge=0)
    attempt: int = Field(default=0, ge=0)
    purpose: Literal["train", "evaluation"] = "train"
    environment: str = "outside"
    environment_version: str = "1"


class Sealing(Strict):
    """Ends a rollout; without a reason the record says that the agent finished."""

    reason: str | None = None
    detail: str = ""


class Judging(Strict):
    """A verdict on a rollout."""

    success: bool | None
    score: float | None = None
    verifier: str = ""
    world_state_checks: dict[str, bool] = Field(default_factory=dict)
    format_checks: dict[str, bool] = Field(default_factory=dict)
    safety_checks: dict[str, bool] = Field(default_factory=dict)
    invalid_actions: int = Field(default=0, ge=0)
    evidence: str | None = None
