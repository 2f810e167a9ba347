"""Double entry for attempts and for sampled tokens: nothing a run samples can disappear.

Per step: opening in flight + started = closed, each into exactly one bucket + closing in flight. The closing figure is
counted by whoever holds the rollouts, not computed as the balance, so a rollout that was dropped is noticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from kifu.errors import FormatError, LedgerError


class Bucket(StrEnum):
    """What became of an attempt, or the first use of a sampled token. A new member is a change of record format."""

    TRAINED = "trained"
    """Entered an optimizer step."""
    DEGENERATE = "degenerate"
    """Its group had equal rewards, so it carried no gradient."""
    STALE = "stale"
    """Sampled too many versions ago."""
    TRUNCATED_EXCLUDED = "truncated_excluded"
    """The collector cut it, and the experiment excludes such episodes."""
    INFRA_ERROR = "infra_error"
    INTERRUPTED = "interrupted"
    """Stopped by the run's own end, before an outcome."""
    QUARANTINED = "quarantined"
    """Withheld as suspicious, for a person to look at."""
    DUPLICATE = "duplicate"
    DEMONSTRATION_ONLY = "demonstration_only"
    """Failed the check before the update, or was never sampled by the policy."""
    HELD_BACK = "held_back"
    """Trainable, but a filter or a budget left it out."""
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Attempts and the tokens sampled in them."""

    attempts: int = 0
    tokens: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(attempts=self.attempts + other.attempts, tokens=self.tokens + other.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The entries of one step. Every transition gives a new value; `check` compares both sides."""

    step: int
    opening: Count = field(default_factory=Count)
    """In flight when the step began."""
    started: Count = field(default_factory=Count)
    """Attempts started and tokens sampled during the step."""
    closed: Mapping[Bucket, Count] = field(default_factory=dict)
    closing: Count = field(default_factory=Count)
    """In flight when the step ended, as counted by their holder."""
    times_used: Mapping[int, int] = field(default_factory=dict)
    """Tokens the step's updates used, by how often each has been used now: replay, duplication and epochs count."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "closed", MappingProxyType(dict(self.closed)))
        object.__setattr__(self, "times_used", MappingProxyType(dict(self.times_used)))

    def start(self, *, attempts: int = 0, tokens: int = 0) -> "Ledger":
        """Enter new attempts, or tokens sampled by attempts in flight."""
        return replace(self, started=self.started + _count(attempts, tokens, "started"))

    def close(self, bucket: Bucket, *, attempts: int = 0, tokens: int = 0) -> "Ledger":
        """Enter attempts and tokens that leave into a bucket.

        An attempt whose tokens differ in their first use is closed once, its tokens bucket by bucket.
        """
        found = self.closed.get(bucket, Count()) + _count(attempts, tokens, bucket)
        return replace(self, closed={**self.closed, bucket: found})

    def use(self, times: int, *, tokens: int) -> "Ledger":
        """Enter tokens that an update used for the ``times``-th time."""
        if times < 1 or tokens < 0:
            raise LedgerError(f"step {self.step}: {tokens} tokens cannot have been used {times} times")
        return replace(self, times_used={**self.times_used, times: self.times_used.get(times, 0) + tokens})

    def end(self, *, in_flight: Count) -> "Ledger":
        """Enter what its holder counts as still in flight."""
        return replace(self, closing=in_flight)

    def next(self) -> "Ledger":
        """The next step, opened with what is in flight; both sides are checked first."""
        self.check()
        return Ledger(step=self.step + 1, opening=self.closing)

    @property
    def total_closed(self) -> Count:
        """Over all buckets."""
        total = Count()
        for count in self.closed.values():
            total = total + count
        return total

    @property
    def is_closed(self) -> bool:
        """Whether both sides agree."""
        return self.opening + self.started == self.total_closed + self.closing

    def check(self) -> None:
        """Compare both sides.

        Raises:
            LedgerError: they differ; the message shows every entry of both.
        """
        if not self.is_closed:
            raise LedgerError(
                f"step {self.step}: the ledger does not close.\n{self._side('attempts')}\n{self._side('tokens')}\n"
                "A rollout was dropped or counted twice; the run stops so that its record stays true."
            )
        trained = self.closed.get(Bucket.TRAINED, Count()).tokens
        if self.times_used and sum(self.times_used.values()) < trained:
            raise LedgerError(
                f"step {self.step}: {trained} tokens closed as trained, but updates used only "
                f"{sum(self.times_used.values())}"
            )

    def _side(self, unit: str) -> str:
        left = getattr(self.opening, unit) + getattr(self.started, unit)
        right = getattr(self.total_closed, unit) + getattr(self.closing, unit)
        buckets = " + ".join(f"{name} {getattr(count, unit)}" for name, count in sorted(self.closed.items()))
        return (
            f"  {unit}: opening {getattr(self.opening, unit)} + started {getattr(self.started, unit)} = {left}, "
            f"but {buckets or 'nothing closed'} + in flight {getattr(self.closing, unit)} = {right}"
        )

    def to_json(self) -> dict[str, Any]:
        """As it stands in ``metrics.jsonl`` and ``plan.jsonl``; counts are ``[attempts, tokens]``."""
        return {
            "step": self.step,
            "opening": _pair(self.opening),
            "started": _pair(self.started),
            "closed": {bucket.value: _pair(count) for bucket, count in sorted(self.closed.items())},
            "closing": _pair(self.closing),
            "times_used": {str(times): tokens for times, tokens in sorted(self.times_used.items())},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Ledger":
        """Read what `to_json` wrote."""
        try:
            return cls(
                step=value["step"],
                opening=_unpair(value["opening"]),
                started=_unpair(value["started"]),
                closed={Bucket(name): _unpair(pair) for name, pair in value["closed"].items()},
                closing=_unpair(value["closing"]),
                times_used={int(times): tokens for times, tokens in value["times_used"].items()},
            )
        except (KeyError, TypeError, ValueError) as cause:
            raise FormatError(f"ledger of step {value.get('step')}: not in a form this kifu knows: {cause}") from cause


def _count(attempts: int, tokens: int, what: str) -> Count:
    if attempts < 0 or tokens < 0:
        raise LedgerError(f"{what}: entries are counts, found {attempts} attempts and {tokens} tokens")
    return Count(attempts=attempts, tokens=tokens)


def _pair(count: Count) -> list[int]:
    return [count.attempts, count.tokens]


def _unpair(pair: list[int]) -> Count:
    attempts, tokens = pair
    return Count(attempts=attempts, tokens=tokens)
