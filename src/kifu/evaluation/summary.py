"""From evaluation rollouts to what is reported about an agent.

Axes: ``K`` tasks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kifu.errors import UsageError
from kifu.evaluation.best_of import BestOf
from kifu.evaluation.contamination import Overlap, TrainingHistory
from kifu.evaluation.efficiency import Efficiency
from kifu.evaluation.intervals import Interval, clustered_wilson, interval_json
from kifu.evaluation.judged import judged_success
from kifu.evaluation.passk import pass_at_k, pass_hat_k
from kifu.evaluation.safety import CallAudit, SafetyAudit
from kifu.evaluation.side_effects import EffectAudit
from kifu.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity over tries; all None without any."""

    mean: float | None
    p95: float | None
    total: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Mean, 95th percentile (linear between neighbours) and sum."""
        if not values:
            return cls(mean=None, p95=None, total=None)
        return cls(mean=float(np.mean(values)), p95=float(np.quantile(values, 0.95)), total=float(np.sum(values)))

    def to_json(self) -> dict[str, float | None]:
        """Field by field."""
        return {"mean": self.mean, "p95": self.p95, "total": self.total}


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """Success rate over judged tries, with an interval that knows tries come in tasks."""

    tasks: int
    """Tasks attempted, judged or not."""
    judged: int
    """Tries that count."""
    interval: Interval | None
    """None when no try was judged: absent, not zero."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> "Success":
        """Rate and interval."""
        tries = _tries(trajectories)
        judged = [found for found in tries.values() if found]
        if not judged:
            return cls(tasks=len(tries), judged=0, interval=None)
        wins_K = np.array([sum(found) for found in judged], dtype=np.int64)
        tries_K = np.array([len(found) for found in judged], dtype=np.int64)
        return cls(tasks=len(tries), judged=int(tries_K.sum()), interval=clustered_wilson(wins_K, tries_K))

    def to_json(self) -> dict[str, Any]:
        """``mean``, ``low``, ``high``; nulls when nothing was judged."""
        return interval_json(self.interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """pass@k and pass^k, each the mean over tasks with at least k judged tries."""

    k: int
    tasks: int
    pass_at_k: float
    pass_hat_k: float

    def to_json(self) -> dict[str, Any]:
        """Under the names of the literature."""
        return {"k": self.k, "tasks": self.tasks, "pass@k": self.pass_at_k, "pass^k": self.pass_hat_k}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSummary:
    """Everything reported about one evaluation."""

    run: str
    checkpoint: str
    split: str
    tasks: int
    tries: int
    """Largest number of tries at one task; an attempt repeated after an infrastructure error is the same try."""
    attempts: int
    """Rollouts started."""
    success: Success
    by_family: Mapping[str, Success]
    turns: Spread
    calls: Spread
    tokens: Spread
    """Sampled by the policy."""
    seconds: Spread
    """Wall seconds of a rollout."""
    errors: Mapping[str, int]
    """Technical errors by stop reason; excluded from every mean above."""
    stops: Mapping[str, int]
    """All other attempts by stop reason."""
    reliability: tuple[Reliability, ...]
    audits: tuple[SafetyAudit, CallAudit]
    overlap: Overlap = field(default_factory=Overlap)
    efficiency: Efficiency
    effects: EffectAudit | None = None
    """Attacks and irreversible actions, where that was asked for."""
    best_of: BestOf | None = None
    """What a judge's choice among the attempts is worth, where that was asked for."""

    @property
    def unjudged(self) -> int:
        """Attempts without infrastructure error and without a success or failure."""
        return self.attempts - sum(self.errors.values()) - self.success.judged

    @property
    def seen_in_training(self) -> bool:
        """Whether any evaluated task or initial state was trained on."""
        return self.overlap.seen_in_training

    def to_json(self) -> dict[str, Any]:
        """The object that ``kifu eval RUN --json`` prints."""
        safety, calls = self.audits
        return {
            "run": self.run,
            "checkpoint": self.checkpoint,
            "split": self.split,
            "tasks": self.tasks,
            "tries": self.tries,
            "success": self.success.to_json(),
            "by_family": {
                name: {**found.to_json(), "tasks": found.tasks} for name, found in sorted(self.by_family.items())
            },
            "turns": self.turns.to_json(),
            "errors": dict(self.errors),
            "attempts": self.attempts,
            "unjudged": self.unjudged,
            "stops": dict(self.stops),
            "calls": {**self.calls.to_json(), **calls.to_json()},
            "tokens": self.tokens.to_json(),
            "seconds": self.seconds.to_json(),
            "reliability": [found.to_json() for found in self.reliability],
            "safety": safety.to_json(),
            "efficiency": self.efficiency.to_json(),
            "seen_in_training": self.seen_in_training,
            "overlap": self.overlap.to_json(),
            **({} if self.effects is None else {"safety_audit": self.effects.to_json()}),
            **({} if self.best_of is None else {"best_of": self.best_of.to_json()}),
        }


def summarize(
    trajectories: Iterable[Trajectory],
    *,
    run: str = "",
    checkpoint: str = "",
    history: TrainingHistory | None = None,
    efficiency: Efficiency | None = None,
) -> EvaluationSummary:
    """Summarize the rollouts of one evaluation.

    Args:
        trajectories: every attempt, errors included.
        run: names the run in the summary.
        checkpoint: names the weights.
        history: what the policy was trained on; None marks nothing as seen.
        efficiency: measured by the caller; by default taken from the rollouts' own clocks.

    Raises:
        UsageError: no rollouts.
    """
    everything = list(trajectories)
    if not everything:
        raise UsageError("an evaluation without rollouts has nothing to report. Check the split and the task count.")
    sound = [item for item in everything if not item.outcome.infra_error]
    families: dict[str, list[Trajectory]] = defaultdict(list)
    for item in everything:
        families[item.task.family].append(item)
    return EvaluationSummary(
        run=run,
        checkpoint=checkpoint,
        split=", ".join(sorted({item.task.split for item in everything})),
        tasks=len({item.task.id for item in everything}),
        tries=_most_tries(everything),
        attempts=len(everything),
        success=Success.of(everything),
        by_family={name: Success.of(members) for name, members in families.items()},
        turns=Spread.of([len(item.turns) for item in sound]),
        calls=Spread.of([sum(len(turn.action.executed) for turn in item.turns) for item in sound]),
        tokens=Spread.of([item.sampled_tokens for item in sound]),
        seconds=Spread.of([item.costs.seconds for item in sound]),
        errors=_reasons(item for item in everything if item.outcome.infra_error),
        stops=_reasons(sound),
        reliability=_reliability(everything),
        audits=(SafetyAudit.of(everything), CallAudit.of(sound)),
        overlap=Overlap() if history is None else Overlap.of(everything, history),
        efficiency=Efficiency.of(everything) if efficiency is None else efficiency,
    )


def _tries(trajectories: Iterable[Trajectory]) -> dict[str, list[bool]]:
    """Judged tries by task; a task without any has an empty list."""
    tries: dict[str, list[bool]] = defaultdict(list)
    for trajectory in trajectories:
        success = judged_success(trajectory)
        tries[trajectory.task.id].extend([] if success is None else [success])
    return tries


def _most_tries(trajectories: Iterable[Trajectory]) -> int:
    places: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
    for trajectory in trajectories:
        key = trajectory.key
        places[trajectory.task.id].add((key.step, key.group, key.member))
    return max(len(found) for found in places.values())


def _reliability(trajectories: Iterable[Trajectory]) -> tuple[Reliability, ...]:
    tries = list(_tries(trajectories).values())
    found = []
    for k in range(1, max(map(len, tries)) + 1):
        enough = [judged for judged in tries if len(judged) >= k]
        found.append(
            Reliability(
                k=k,
                tasks=len(enough),
                pass_at_k=float(np.mean([pass_at_k(sum(judged), len(judged), k=k) for judged in enough])),
                pass_hat_k=float(np.mean([pass_hat_k(sum(judged), len(judged), k=k) for judged in enough])),
            )
        )
    return tuple(found)


def _reasons(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    counts = Counter(trajectory.outcome.reason.value for trajectory in trajectories)
    return dict(sorted(counts.items()))
