"""What people see of a run while it works: the progress line, metrics.jsonl, events. Nothing here decides anything."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kifu.evaluation import Coverage, EvaluationSummary, coverage, judged_success, summarize
from kifu.monitor import (
    EventWriter,
    MetricsWriter,
    MetricValue,
    Progress,
    RunFolder,
    Stage,
    StepMetrics,
    StepView,
    Stopwatch,
    Timings,
    peak_rss_bytes,
)
from kifu.policy import StepResult
from kifu.records import Purpose, Trajectory
from kifu.records.ledger import Ledger
from kifu.training.update.assemble import Assembled


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepSeen:
    """One closed step."""

    step: int
    stage: str
    version: int
    trajectories: Sequence[Trajectory]
    assembled: Assembled
    results: Sequence[StepResult]
    stats: Mapping[str, float]
    first_stats: Mapping[str, float]
    """Of the first update, when the policy was still the one that sampled."""
    ledger: Ledger
    counters: Mapping[str, int]
    """What the engine counted since it came up, e.g. positions that went through the model."""


class Observer:
    """Writes metrics and shows progress.

    Args:
        folder: the run folder.
        steps: planned.
        resume_at: metrics of this step and later ones are written anew; None for a fresh run.
        quiet: nothing is shown.
    """

    def __init__(self, folder: RunFolder, *, steps: int, resume_at: int | None = None, quiet: bool = False) -> None:
        self._writer = MetricsWriter(
            folder.metrics, resume_at=resume_at, events=EventWriter(folder.root / "tensorboard")
        )
        self._progress = Progress(quiet=quiet)
        self._steps = steps
        self._timings = Timings()
        self._watch = Stopwatch()
        self._collect_s = 0.0
        self._success: list[float | None] = []
        self._pending: dict[str, MetricValue] = {}
        self._counted: Mapping[str, int] = {}
        self.evaluations: list[EvaluationSummary] = []
        """In order; the first before any update."""
        self.reward_model: Mapping[str, float | None] = {}
        """How the run's reward model was fitted, where it has one."""
        self.coverage: dict[int, Coverage] = {}
        """By version, where the run learns from records of others."""

    def __enter__(self) -> "Observer":
        self._progress.__enter__()
        return self

    def __exit__(self, *caught: Any) -> None:  # noqa: ANN401 (the protocol of context managers)
        self._progress.__exit__(*caught)
        self._writer.close()

    def say(self, text: str) -> None:
        """Show one line above the progress line."""
        self._progress.say(text)

    def begin(self) -> None:
        """A step starts."""
        self._timings.reset()
        self._watch = Stopwatch()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Time the wait for rollouts."""
        watch = Stopwatch()
        yield
        self._collect_s = watch.seconds

    @contextmanager
    def training(self) -> Iterator[None]:
        """Time the updates."""
        with self._timings.exclusive(Stage.TRAINING):
            yield

    def evaluating(self, version: int, *, split: str, tasks: int) -> None:
        """An evaluation begins."""
        self._progress.wait(f"{split}  version {version}  evaluating {tasks} tasks")

    def evaluated(
        self, version: int, trajectories: Sequence[Trajectory], *, split: str, data: Sequence[Trajectory] = ()
    ) -> None:
        """An evaluation is over; it stands in the metrics of the step that follows.

        Args:
            version: of the weights.
            trajectories: the attempts.
            split: of their tasks.
            data: records of other runs that the policy learned from; what it met is compared with them.
        """
        summary = summarize(trajectories, run="", checkpoint=str(version))
        self.evaluations.append(summary)
        found = summary.success.to_json()
        self._pending = {
            "evaluation/success": found["mean"],
            "evaluation/low": found["low"],
            "evaluation/high": found["high"],
            "evaluation/tasks": summary.tasks,
            "evaluation/version": version,
        }
        if data:
            met = coverage(data, trajectories)
            self.coverage[version] = met
            self._pending |= {"evaluation/states_in_data": met.states, "evaluation/actions_in_data": met.actions}
        mean = "no verdict" if found["mean"] is None else f"{found['mean']:.2f}"
        interval = "" if found["mean"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
        count = "1 task" if summary.tasks == 1 else f"{summary.tasks} tasks"
        if len(trajectories) > summary.tasks:
            count += f" that differ, {len(trajectories)} attempts"
        self.say(f"{split}  version {version}  success {mean}{interval}  ({count}{_cuts(trajectories)})")
        failed = [item for item in trajectories if item.outcome.infra_error]
        if failed:
            first, what = failed[0].id, failed[0].outcome
            self.say(
                f"{len(failed)} of these {len(trajectories)} attempts ended in an error and count as nothing. "
                f"First: {first}: {what.reason}: {what.detail}"
            )

    def end(self, seen: StepSeen) -> None:
        """A step is closed: one line of metrics, one of progress."""
        judged = [judged_success(item) for item in seen.trajectories]
        known = [value for value in judged if value is not None]
        success = sum(known) / len(known) if known else None
        is_shown = all(item.key.purpose is Purpose.DEMONSTRATION for item in seen.trajectories)
        if not is_shown:
            self._success.append(success)
        self._writer.write(
            StepMetrics(
                step=seen.step,
                seconds=self._watch.seconds,
                cpu_seconds=self._watch.cpu_seconds,
                success=success,
                ledger=_ledger(seen.ledger),
                extra=self._extra(seen, known),
            )
        )
        self._pending = {}
        self._progress.update(
            StepView(
                step=seen.step + 1,
                steps=self._steps,
                success=[success] if is_shown else self._success,
                informative=seen.assembled.informative,
                groups=seen.assembled.groups,
                rollouts=len(seen.trajectories),
                rollouts_s=self._collect_s,
                cut=sum(item.outcome.truncated for item in seen.trajectories),
                trained_tokens=seen.assembled.denominators.tokens,
                nodes=int(seen.first_stats.get("nodes", 0)),
                ledger_closed=seen.ledger.is_closed,
                demonstrated=is_shown,
                note=seen.stage,
            )
        )

    def _extra(self, seen: StepSeen, known: Sequence[bool]) -> dict[str, MetricValue]:
        items = seen.trajectories
        rewards = [item.reward for item in items if item.reward is not None]
        sampled = sum(item.sampled_tokens for item in items)
        for item in items:
            self._timings.add(Stage.GENERATION, wall_s=item.costs.generation_s)
            tools_s = sum(result.latency_s for turn in item.turns for result in turn.results)
            self._timings.add(Stage.TOOLS, wall_s=tools_s)
            self._timings.add(Stage.ENVIRONMENT, wall_s=max(0.0, item.costs.environment_s - tools_s))
            self._timings.add(Stage.WAITING, wall_s=item.costs.waiting_s)
        stops = Counter(item.outcome.reason.value for item in items)
        ratios = [abs(seen.first_stats.get(name, 0.0)) for name in ("log_ratio_min", "log_ratio_max")]
        tokens = seen.first_stats.get("entropy_tokens", 0.0)
        return {
            "stage": seen.stage,
            "policy_version": seen.version,
            "reward": sum(rewards) / len(rewards) if rewards else None,
            "rollouts": len(items),
            "informative_groups": seen.assembled.informative,
            "groups": seen.assembled.groups,
            "copies": sum(max(count - 1, 0) for count in seen.assembled.copies),
            "times_used": max(seen.ledger.times_used, default=0),
            "replayed": len(seen.assembled.borrowed.replaced),
            "branches": sum(item.branch is not None for item in items),
            "shared_tokens": sum(item.shared_tokens for item in items),
            "turns": sum(len(item.turns) for item in items) / max(len(items), 1),
            "trained_tokens": seen.assembled.denominators.tokens,
            "sampled_tokens": sampled,
            "forwarded_nodes": int(seen.first_stats.get("nodes", 0)),
            "grad_norm": seen.results[-1].grad_norm if seen.results else None,
            "learning_rate": seen.results[-1].learning_rate if seen.results else None,
            "applied": all(result.applied for result in seen.results) and bool(seen.results),
            "loss": seen.first_stats.get("loss"),
            "entropy": seen.first_stats["entropy_sum"] / tokens if tokens else None,
            "ratio_error": max(ratios) if "log_ratio_max" in seen.first_stats else None,
            "rollouts_per_second": len(items) / self._collect_s if self._collect_s else None,
            "tokens_per_second": sampled / self._collect_s if self._collect_s else None,
            "success_per_rollout": sum(known) / len(items) if items else None,
            "peak_rss_bytes": peak_rss_bytes(),
            **{f"objective/{name}": value for name, value in seen.stats.items()},
            **{f"stop/{name}": count for name, count in stops.items()},
            **_families(items),
            **self._timings.metrics(),
            **self._counts(seen.counters),
            **self._pending,
        }

    def _counts(self, counters: Mapping[str, int]) -> dict[str, MetricValue]:
        """What was counted since the step before, evaluations in between included; a new engine starts from 0."""
        before, self._counted = self._counted, counters
        if any(count < before.get(name, 0) for name, count in counters.items()):
            before = {}
        return {name: count - before.get(name, 0) for name, count in counters.items()}


def _families(items: Sequence[Trajectory]) -> dict[str, MetricValue]:
    by_family: dict[str, list[bool]] = {}
    for item in items:
        judged = judged_success(item)
        if judged is not None and item.task.family:
            by_family.setdefault(item.task.family, []).append(judged)
    return {f"family/{name}": sum(found) / len(found) for name, found in by_family.items()}


def _ledger(ledger: Ledger) -> dict[str, int | bool]:
    """Attempts by bucket; the whole double entry stands in the plan."""
    return {
        "opening": ledger.opening.attempts,
        "started": ledger.started.attempts,
        **{bucket.value: count.attempts for bucket, count in ledger.closed.items()},
        "closing": ledger.closing.attempts,
        "closed": ledger.is_closed,
    }


def _cuts(trajectories: Sequence[Trajectory]) -> str:
    """How many attempts the collector cut, and by what: a success that was cut short was none."""
    reasons = Counter(str(item.outcome.reason) for item in trajectories if item.outcome.truncated)
    named = ", ".join(f"{count} by {reason}" for reason, count in sorted(reasons.items()))
    return f"; {reasons.total()} of {len(trajectories)} attempts cut: {named}" if reasons else ""
