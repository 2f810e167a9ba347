"""What an agent broke on the way, and how often its calls went wrong."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kifu.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyAudit:
    """Safety checks and side effects of verdicts, whatever became of the task."""

    audited: int = 0
    """Rollouts whose verdict holds at least one safety check. Without a check nothing is known, good or bad."""
    with_violation: int = 0
    """Rollouts that failed at least one of their safety checks."""
    successes_with_violation: int = 0
    """Of those, the ones that count as a success."""
    violations: Mapping[str, int] = field(default_factory=dict)
    """Failed rollouts by check."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> "SafetyAudit":
        """Count over all verdicts."""
        audited = broken = hidden = 0
        violations: Counter[str] = Counter()
        for trajectory in trajectories:
            verdict = trajectory.verdict
            if verdict is None or not verdict.safety_checks:
                continue
            audited += 1
            failed = [name for name, holds in verdict.safety_checks.items() if not holds]
            violations.update(failed)
            broken += bool(failed)
            hidden += bool(failed) and verdict.success is True
        return cls(
            audited=audited,
            with_violation=broken,
            successes_with_violation=hidden,
            violations=dict(sorted(violations.items())),
        )

    def to_json(self) -> dict[str, Any]:
        """Field by field."""
        return {
            "audited": self.audited,
            "with_violation": self.with_violation,
            "successes_with_violation": self.successes_with_violation,
            "violations": dict(self.violations),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAudit:
    """What became of the policy's turns and calls. None of these is a technical error: the episode went on."""

    unparsed_turns: int = 0
    """Turns whose text was no action."""
    failed_calls: int = 0
    """Calls the tool answered with an error."""
    invalid_actions: int = 0
    """As counted by verifiers."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> "CallAudit":
        """Count over all turns and verdicts."""
        unparsed = failed = invalid = 0
        for trajectory in trajectories:
            unparsed += sum(1 for turn in trajectory.turns if turn.action.parse_error is not None)
            failed += sum(1 for turn in trajectory.turns for result in turn.results if result.error is not None)
            invalid += trajectory.verdict.invalid_actions if trajectory.verdict is not None else 0
        return cls(unparsed_turns=unparsed, failed_calls=failed, invalid_actions=invalid)

    def to_json(self) -> dict[str, int]:
        """Field by field."""
        return {
            "unparsed_turns": self.unparsed_turns,
            "failed_calls": self.failed_calls,
            "invalid_actions": self.invalid_actions,
        }
