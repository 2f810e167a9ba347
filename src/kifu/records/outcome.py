"""How an episode ended and what the world said about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from kifu.errors import AgentFailure, BoundaryError, EngineFailure, SandboxFailure, VerifierFailure
from kifu.records.plain import as_count, as_flag, as_items, as_real, as_text


class Owner(StrEnum):
    """Whose decision or failure ended the episode."""

    TASK = "task"
    POLICY = "policy"
    COLLECTOR = "collector"
    INFRASTRUCTURE = "infrastructure"


class StopReason(StrEnum):
    """Why an episode ended; the owner is part of the reason. A new member is a change of record format."""

    SUCCESS = "success"
    FAILURE = "failure"
    TASK_BUDGET = "task_budget"
    """A limit that belongs to the task: a true terminal failure."""
    NATURAL_END = "natural_end"
    """The policy answered without a call."""
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_LIMIT = "context_limit"
    TIME_LIMIT = "time_limit"
    TOOL_RESULT_OVERFLOW = "tool_result_overflow"
    CANCELLED = "cancelled"
    ENV_ERROR = "env_error"
    VERIFIER_ERROR = "verifier_error"
    ENGINE_ERROR = "engine_error"
    SANDBOX_ERROR = "sandbox_error"
    AGENT_ERROR = "agent_error"

    @property
    def owner(self) -> Owner:
        """Whose decision or failure it was."""
        return _OWNER[self]


_OWNER: Mapping[StopReason, Owner] = {
    StopReason.SUCCESS: Owner.TASK,
    StopReason.FAILURE: Owner.TASK,
    StopReason.TASK_BUDGET: Owner.TASK,
    StopReason.NATURAL_END: Owner.POLICY,
    StopReason.TURN_LIMIT: Owner.COLLECTOR,
    StopReason.TOKEN_LIMIT: Owner.COLLECTOR,
    StopReason.CONTEXT_LIMIT: Owner.COLLECTOR,
    StopReason.TIME_LIMIT: Owner.COLLECTOR,
    StopReason.TOOL_RESULT_OVERFLOW: Owner.COLLECTOR,
    StopReason.CANCELLED: Owner.COLLECTOR,
    StopReason.ENV_ERROR: Owner.INFRASTRUCTURE,
    StopReason.VERIFIER_ERROR: Owner.INFRASTRUCTURE,
    StopReason.ENGINE_ERROR: Owner.INFRASTRUCTURE,
    StopReason.SANDBOX_ERROR: Owner.INFRASTRUCTURE,
    StopReason.AGENT_ERROR: Owner.INFRASTRUCTURE,
}


_DETAIL_CHARS = 2000
_REASONS: Mapping[type[BoundaryError], StopReason] = {
    AgentFailure: StopReason.AGENT_ERROR,
    EngineFailure: StopReason.ENGINE_ERROR,
    SandboxFailure: StopReason.SANDBOX_ERROR,
    VerifierFailure: StopReason.VERIFIER_ERROR,
    BoundaryError: StopReason.ENV_ERROR,
}
"""The first that fits; environments and their tools are what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Why an episode ended. It has no truth value: ask for one of the derived flags."""

    reason: StopReason
    detail: str = ""
    """For people: the message of an error, the limit that was hit. May quote host facts; excluded from the digest."""

    @property
    def terminated(self) -> bool:
        """The task or the policy ended the episode; the future is worth 0."""
        return self.reason.owner in (Owner.TASK, Owner.POLICY)

    @property
    def truncated(self) -> bool:
        """The collector cut the episode; the future is unknown, not worth 0."""
        return self.reason.owner is Owner.COLLECTOR

    @property
    def infra_error(self) -> bool:
        """Infrastructure failed; the episode says nothing about the policy."""
        return self.reason.owner is Owner.INFRASTRUCTURE

    @classmethod
    def failed(cls, failure: BoundaryError) -> Self:
        """That of an episode which a room broke; a kind of failure that refines another ends it as that one does."""
        reasons = (reason for kind, reason in _REASONS.items() if isinstance(failure, kind))
        return cls(reason=next(reasons), detail=str(failure)[:_DETAIL_CHARS])

    def __bool__(self) -> bool:
        raise TypeError("an Outcome has no truth value; ask terminated, truncated or infra_error")


def _items(verdict: "Verdict", name: str) -> list[tuple[str, object]]:
    return as_items(getattr(verdict, name), f"verdict {name}")


JUDGED = "judge"
"""Assurance of a verdict that is a model's judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verifier found in the world after the episode."""

    success: bool | None
    """None when the verifier could not tell; then the episode has no reward."""
    score: float | None = None
    """Partial credit; None means success counts as 0 or 1."""
    world_state_checks: Mapping[str, bool] = field(default_factory=dict)
    format_checks: Mapping[str, bool] = field(default_factory=dict)
    safety_checks: Mapping[str, bool] = field(default_factory=dict)
    invalid_actions: int = 0
    resource_usage: Mapping[str, float] = field(default_factory=dict)
    """Measured; excluded from the content digest."""
    infra_status: str = "ok"
    assurance: str = "state"
    """How the verdict was reached: ``state`` (world state read by trusted code), ``judge`` (a model's judgement), or a
    level of the sandbox room."""
    verifier: str = ""
    """Id and version, e.g. ``key_door/1``."""
    evidence: str | None = None
    """Digest of the evidence the verifier looked at."""

    def __post_init__(self) -> None:
        made: dict[str, object] = {
            "success": None if self.success is None else as_flag(self.success, "verdict success"),
            "score": None if self.score is None else as_real(self.score, "verdict score"),
            "invalid_actions": as_count(self.invalid_actions, "verdict invalid_actions"),
            "resource_usage": MappingProxyType(
                {name: as_real(item, f"verdict resource_usage.{name}") for name, item in _items(self, "resource_usage")}
            ),
            "evidence": None if self.evidence is None else as_text(self.evidence, "verdict evidence"),
        }
        for name in ("infra_status", "assurance", "verifier"):
            made[name] = as_text(getattr(self, name), f"verdict {name}")
        for name in ("world_state_checks", "format_checks", "safety_checks"):
            made[name] = MappingProxyType(
                {check: as_flag(item, f"verdict {name}.{check}") for check, item in _items(self, name)}
            )
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def reward(self) -> float | None:
        """The task reward, paid once at the end: the score, else success as 0 or 1, else None (absent, not zero)."""
        if self.score is not None:
            return float(self.score)
        return None if self.success is None else float(self.success)
