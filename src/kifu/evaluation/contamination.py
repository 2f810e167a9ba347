"""Was the agent tested on what it was trained on?"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kifu.records import Purpose, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingHistory:
    """What a policy has met in training, demonstrations included."""

    task_ids: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    """Digests of initial states."""
    verifiers: frozenset[str] = frozenset()
    """Ids and versions."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> "TrainingHistory":
        """Collect from a run's records; evaluation rollouts among them do not count."""
        tasks, states, verifiers = set(), set(), set()
        for trajectory in trajectories:
            if trajectory.key.purpose is Purpose.EVALUATION:
                continue
            tasks.add(trajectory.task.id)
            states.add(trajectory.environment.initial_digest)
            verifiers.add(trajectory.verdict.verifier if trajectory.verdict is not None else "")
        return cls(
            task_ids=frozenset(tasks),
            states=frozenset(state for state in states if state is not None),
            verifiers=frozenset(verifiers - {""}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How much of an evaluation was met in training."""

    tasks: int = 0
    """Evaluated task ids that were trained on."""
    states: int = 0
    """Distinct initial states of the evaluation that training started from."""
    verifiers: tuple[str, ...] = ()
    """Verifiers of the evaluation that also paid rewards in training."""

    @classmethod
    def of(cls, evaluated: Iterable[Trajectory], history: TrainingHistory) -> "Overlap":
        """Compare an evaluation with a history."""
        tasks, states, verifiers = set(), set(), set()
        for trajectory in evaluated:
            tasks.add(trajectory.task.id)
            if trajectory.environment.initial_digest is not None:
                states.add(trajectory.environment.initial_digest)
            if trajectory.verdict is not None:
                verifiers.add(trajectory.verdict.verifier)
        return cls(
            tasks=len(tasks & history.task_ids),
            states=len(states & history.states),
            verifiers=tuple(sorted(verifiers & history.verifiers)),
        )

    @property
    def seen_in_training(self) -> bool:
        """Whether any task or initial state was trained on. Sharing the verifier alone is reported, not flagged."""
        return self.tasks > 0 or self.states > 0

    def to_json(self) -> dict[str, Any]:
        """Field by field."""
        return {"tasks": self.tasks, "states": self.states, "verifiers": list(self.verifiers)}
