"""Values an environment exchanges with the rollout: tasks, tools, observations, replies, capabilities."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from kifu.records import Json, StopReason, Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to attempt. ``data`` is for ``reset``; hidden answers may stand in it, the policy never sees it."""

    id: str
    seed: int = 0
    family: str = ""
    split: str = "train"
    data: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", MappingProxyType(dict(self.data)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool as the policy is told about it."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    """JSON Schema of an object. A property with ``enum`` makes the call finite, so a grammar can list it."""
    command: str | None = None
    """How the call looks in the command dialect, e.g. ``pickup {color} key``; None: name and arguments in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What ``reset`` shows the policy."""

    text: str
    trust: Trust = Trust.TASK


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one call shows the policy, and what it did to the episode. A tool may return plain text instead."""

    text: str
    stop: StopReason | None = None
    """Ends the episode; only reasons the task owns (success, failure, task_budget)."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Step components, paid only where the experiment gives them a weight."""
    duration: float = 1.0
    """In the task's own units."""
    exit_status: int | None = None
    error: str | None = None
    """The tool's own failure; the episode goes on."""
    trust: Trust = Trust.TOOL


class SnapshotKind(StrEnum):
    """How an environment can be put back to where it was."""

    STATE = "state"
    """JSON-compatible state."""
    BYTES = "bytes"
    """Bytes with a safe parser."""
    REPLAY = "replay"
    """Only by repeating the actions from reset; checked by digest."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Declared by the environment, checked by ``kifu.testing.check_env``."""

    snapshot: SnapshotKind = SnapshotKind.STATE
    deterministic: bool = True
    """Same task, seed and actions give the same observations and digests."""
    verify: str = "state"
    """``state``, ``program`` or ``text``: what the verdict looks at."""
    parallel: str = "thread"
    """``thread`` or ``process``: the isolation instances need from each other."""
    network: bool = False
