"""What an irreversible tool may do: allow-lists and limits, and the numbered attempts of an episode they count."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from kifu.errors import UsageError
from kifu.records import Json, ToolCall

_RUN = "[A-Za-z0-9._+-]*"


class Mode(StrEnum):
    """How calls of irreversible tools are carried out."""

    TWO_PHASE = "two_phase"
    """A call prepares; what passes the checks is carried out by a second call that names it, after a second check."""
    SHADOW = "shadow"
    """Nothing is carried out: what passes the checks is written down and answered as if it had been."""
    DIRECT = "direct"
    """What passes the checks is carried out at once, unconfirmed: the control of an experiment."""


class Status(StrEnum):
    """What became of an attempt."""

    REFUSED = "refused"
    """A check failed, at the first call or at the confirmation."""
    PREPARED = "prepared"
    CANCELLED = "cancelled"
    EXECUTED = "executed"
    """Handed to the tool; whether that failed or not, it counts."""
    SHADOWED = "shadowed"


class Purpose(StrEnum):
    """Whose wish an action fulfils. Told to the log of effects, never to the policy."""

    ASKED = "asked"
    """The task asks for exactly this."""
    UNASKED = "unasked"
    """Outside the set that the task asks for."""
    ATTACK = "attack"
    """What a planted instruction asks for; also unasked."""
    UNKNOWN = "unknown"
    """The environment does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Rules of one irreversible tool. A call that breaks one is refused, whatever the mode."""

    allow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Argument to the texts it may be, as a whole; in lists, each item. ``*`` stands for letters, digits and ``._+-``
    alone, so no separator, line break or foreign letter hides in it."""
    most: Mapping[str, float] = field(default_factory=dict)
    """Argument to its largest amount in one call. Amounts are finite and above 0."""
    total: Mapping[str, float] = field(default_factory=dict)
    """Argument to its largest sum over an episode."""
    calls: int | None = None
    """Calls an episode may carry out."""
    shadow: str = "Done."
    """What the shadow answers."""

    def __post_init__(self) -> None:
        limits = {**self.most, **self.total, **({} if self.calls is None else {"calls": self.calls})}
        for name, limit in limits.items():
            if not (math.isfinite(limit) and limit >= 0):
                raise UsageError(f"gate: limit of `{name}` is {limit}, expected a finite number of at least 0")

    def checks(self, call: ToolCall, carried_out: tuple["Attempt", ...]) -> dict[str, bool]:
        """Every rule by its wording, and whether the call keeps it.

        Args:
            call: what is asked for; an argument with a rule that is missing breaks the rule.
            carried_out: actions of the same tool that count.
        """
        found: dict[str, bool] = {}
        for name, patterns in self.allow.items():
            found[f"`{name}` is on the allow-list"] = _is_listed(call.arguments.get(name), patterns)
        for name, most in self.most.items():
            amount = _amount(call.arguments.get(name))
            found[f"`{name}` is at most {most:g}"] = amount is not None and amount <= most
        for name, total in self.total.items():
            amount = _amount(call.arguments.get(name))
            spent = sum(_amount(item.arguments.get(name)) or 0.0 for item in carried_out)
            found[f"`{name}` is at most {total:g} in all"] = amount is not None and spent + amount <= total
        if self.calls is not None:
            found[f"at most {self.calls} calls are carried out"] = len(carried_out) < self.calls
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One call of an irreversible tool."""

    number: int
    """From 1, over the episode."""
    tool: str
    arguments: Mapping[str, Json]
    status: Status

    @property
    def call(self) -> ToolCall:
        """The call as it was made."""
        return ToolCall(name=self.tool, arguments=dict(self.arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Every attempt of an episode, in order."""

    items: tuple[Attempt, ...] = ()

    def with_new(self, call: ToolCall, status: Status) -> "Attempts":
        """One more, under the next number."""
        made = Attempt(number=len(self.items) + 1, tool=call.name, arguments=dict(call.arguments), status=status)
        return Attempts(items=(*self.items, made))

    def with_status(self, number: int, status: Status) -> "Attempts":
        """The same, one of them with another status."""
        return Attempts(items=tuple(replace(it, status=status) if it.number == number else it for it in self.items))

    @property
    def prepared(self) -> tuple[Attempt, ...]:
        """Those that wait for a confirmation."""
        return tuple(item for item in self.items if item.status is Status.PREPARED)

    @property
    def carried_out(self) -> tuple[Attempt, ...]:
        """Those that were executed, and in a shadow those that would have been."""
        return tuple(item for item in self.items if item.status in (Status.EXECUTED, Status.SHADOWED))

    def of(self, tool: str) -> tuple[Attempt, ...]:
        """Those of `carried_out` of one tool."""
        return tuple(item for item in self.carried_out if item.tool == tool)

    def to_json(self) -> list[Json]:
        """As a part of a snapshot."""
        return [{**asdict(item), "arguments": dict(item.arguments), "status": str(item.status)} for item in self.items]

    @classmethod
    def from_json(cls, found: Json) -> "Attempts":
        """Back from `to_json`.

        Raises:
            UsageError: it is something else.
        """
        try:
            assert isinstance(found, list)
            rows = [{**row, "status": Status(row["status"])} for row in found if isinstance(row, dict)]  # type: ignore[arg-type]
            assert len(rows) == len(found)
            return cls(items=tuple(Attempt(**row) for row in rows))  # type: ignore[arg-type]
        except (AssertionError, KeyError, TypeError, ValueError) as cause:
            raise UsageError(f"snapshot: attempts are {found!r:.100}, expected what Attempts.to_json gave") from cause


def _is_listed(value: Json, patterns: tuple[str, ...]) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_listed(item, patterns) for item in value)
    if not isinstance(value, str):
        return False
    return any(re.fullmatch(_RUN.join(map(re.escape, text.split("*"))), value) for text in patterns)


def _amount(value: Json) -> float | None:
    """A number that can be spent; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
