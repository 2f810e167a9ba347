"""Values an environment exchanges with the rollout: tasks, tools, observations, replies, capabilities."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from kifu.errors import RecordError
from kifu.records import Json, Owner, StopReason, Trust
from kifu.records.plain import as_items, as_real, as_text, as_whole

Snapshot: TypeAlias = "Json | bytes"
"""JSON-compatible state, or bytes with a safe parser; never a pickle."""


_LARGEST = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to attempt. ``data`` is for ``reset``; hidden answers may stand in it, the policy never sees it."""

    id: str
    seed: int = 0
    family: str = ""
    split: str = "train"
    data: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("id", "family", "split"):
            as_text(getattr(self, name), f"task: {name}")
        seed: object = self.seed
        if not isinstance(seed, int) or not -_LARGEST <= seed < _LARGEST:
            raise RecordError(f"task `{self.id}`: seed must be an integer of 64 bits, found {repr(seed)[:100]}")
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

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise RecordError(f"tool `{self.name}`: the name must be an identifier, e.g. `open_door`")
        properties = self.parameters.get("properties", {})
        if self.parameters.get("type", "object") != "object" or not isinstance(properties, dict):
            raise RecordError(f"tool `{self.name}`: parameters must be a JSON Schema of type object")
        if not isinstance(self.parameters.get("required", []), list):
            raise RecordError(f"tool `{self.name}`: `required` must be a list of parameter names")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What ``reset`` shows the policy."""

    text: str
    trust: Trust = Trust.TASK

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust", _trust(self.trust))


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

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise RecordError(f"reply: text must be str, found {type(self.text).__name__}")
        if self.stop is not None and _reason(self.stop).owner is not Owner.TASK:
            raise RecordError(
                f"reply: stop reason `{self.stop}` belongs to the {_reason(self.stop).owner}; an environment may end "
                "an episode only with success, failure or task_budget"
            )
        rewards = {
            name: as_real(value, f"reply: reward component `{name}`")
            for name, value in as_items(self.rewards, "reply: rewards")
        }
        duration = as_real(self.duration, "reply: duration")
        if not duration > 0:
            raise RecordError(f"reply: duration must be > 0 task units, found {self.duration}")
        object.__setattr__(self, "rewards", MappingProxyType(rewards))
        object.__setattr__(self, "duration", duration)
        object.__setattr__(self, "trust", _trust(self.trust))
        object.__setattr__(self, "stop", None if self.stop is None else _reason(self.stop))
        if self.exit_status is not None:
            object.__setattr__(self, "exit_status", as_whole(self.exit_status, "reply: exit_status"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A reward component of an environment: six declarations, without which it cannot be paid."""

    scores: str
    """What it scores."""
    labeller: str
    """Who makes the label."""
    is_checkable: bool
    """Whether others can check it without the labeller."""
    needs_continuation: bool
    """Whether it depends on what the policy does afterwards."""
    is_repeatable: bool
    """Whether one attempt can be paid more than once for the same achievement."""
    changes_optimum: bool
    """Whether paying it can make another policy optimal."""

    def __post_init__(self) -> None:
        for name in ("scores", "labeller"):
            if not as_text(getattr(self, name), f"component: {name}").strip():
                raise RecordError(f"component: {name} is empty; a component says what it scores and who labels it")
        for name in ("is_checkable", "needs_continuation", "is_repeatable", "changes_optimum"):
            if not isinstance(getattr(self, name), bool):
                raise RecordError(f"component: {name} must be true or false, found {getattr(self, name)!r}")


def _reason(value: object) -> StopReason:
    try:
        return StopReason(value)  # type: ignore[arg-type]
    except ValueError as cause:
        raise RecordError(f"reply: stop is {value!r}, expected success, failure or task_budget") from cause


def _trust(value: object) -> Trust:
    try:
        return Trust(value)  # type: ignore[arg-type]
    except ValueError as cause:
        raise RecordError(f"trust: found {value!r}, expected one of {', '.join(Trust)}") from cause


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
    """``state``, ``program`` or ``text``: what the verdict looks at; ``judge``: the verdict is a model's judgement."""
    parallel: str = "thread"
    """``thread`` or ``process``: the isolation instances need from each other."""
    network: bool = False
    effects: bool = False
    """Its calls act outside of this process's memory, in a box, a database or a browser: a run logs each of them."""
    in_process: bool = False
    """Its verdicts are made in the interpreter that runs what the policy wrote, where it can read what is expected. A
    run trains on them only where its experiment says so."""
    continuing: bool = False
    """An endless interaction: episodes are segments, and only the collector's cut ends one."""
