"""Both efficiencies, always together: success per rollout used, and rollouts and tokens per second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kifu.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What a set of rollouts gave and what it took. Rates are None where no time was measured."""

    rollouts: int
    """All of them, infrastructure errors included: they were paid for."""
    successes: int
    tokens: int
    """Sampled by the policy."""
    seconds: float | None
    """Wall seconds from the first start to the last end."""
    share: Mapping[str, float] = field(default_factory=dict)
    """Fraction of rollout time by stage; ``tools`` is the latency of calls."""

    @classmethod
    def of(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        seconds: float | None = None,
        share: Mapping[str, float] | None = None,
    ) -> "Efficiency":
        """Add up the rollouts' costs.

        Args:
            trajectories: all rollouts that were started.
            seconds: wall seconds; by default taken from the rollouts' own clocks.
            share: by stage, e.g. of a run with training; by default taken from the rollouts' costs.
        """
        return cls(
            rollouts=len(trajectories),
            successes=sum(1 for trajectory in trajectories if trajectory.verdict and trajectory.verdict.success),
            tokens=sum(trajectory.sampled_tokens for trajectory in trajectories),
            seconds=_span_s(trajectories) if seconds is None else seconds,
            share=_share(trajectories) if share is None else dict(share),
        )

    @property
    def success_per_rollout(self) -> float | None:
        """Successes over rollouts used."""
        return self.successes / self.rollouts if self.rollouts else None

    @property
    def rollouts_per_second(self) -> float | None:
        """Rollouts over wall seconds."""
        return self.rollouts / self.seconds if self.seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Sampled tokens over wall seconds."""
        return self.tokens / self.seconds if self.seconds else None

    def to_json(self) -> dict[str, Any]:
        """Both efficiencies and the shares."""
        return {
            "success_per_rollout": self.success_per_rollout,
            "rollouts_per_second": self.rollouts_per_second,
            "tokens_per_second": self.tokens_per_second,
            "share": dict(self.share),
        }


def _span_s(trajectories: Sequence[Trajectory]) -> float | None:
    costs = [trajectory.costs for trajectory in trajectories if trajectory.costs.started_at > 0]
    if not costs:
        return None
    return max(cost.started_at + cost.seconds for cost in costs) - min(cost.started_at for cost in costs)


def _share(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    tools = sum(result.latency_s for item in trajectories for turn in item.turns for result in turn.results)
    spent = {
        "generation": sum(item.costs.generation_s for item in trajectories),
        "tools": tools,
        "environment": max(0.0, sum(item.costs.environment_s for item in trajectories) - tools),
        "waiting": sum(item.costs.waiting_s for item in trajectories),
    }
    total = max(sum(spent.values()), sum(item.costs.seconds for item in trajectories))
    if total <= 0:
        return {}
    return {stage: seconds / total for stage, seconds in spent.items()} | {
        "other": 1.0 - sum(spent.values()) / total,
    }
