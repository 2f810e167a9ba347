"""What credit sees of a trajectory: rewards, values and durations per turn, and how it ended.

Axes: ``K`` turns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kifu.errors import RecordError
from kifu.records import Trajectory

Doubles: TypeAlias = npt.NDArray[np.float64]


class Exclusion(StrEnum):
    """Why a trajectory has no credit. It leaves the statistics of its group untouched."""

    INFRA_ERROR = "infra_error"
    TRUNCATED = "truncated"
    NO_REWARD = "no_reward"
    """The verifier could not tell."""
    NO_TURN = "no_turn"


class OnTruncation(StrEnum):
    """What an episode cut by the collector is worth; chosen in the experiment."""

    EXCLUDE = "exclude"
    """Not trained, not in the group's statistics."""
    TERMINAL = "terminal"
    """As if the task had ended there: the verdict's reward, V(h_T) = 0."""
    BOOTSTRAP = "bootstrap"
    """The verdict's reward if there is one, then V(h_T) as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRules:
    """The reward side of layer 4: how a trajectory's rewards become numbers."""

    gamma: float = 1.0
    components: Mapping[str, float] = field(default_factory=dict)
    """Weight of each step component; one that is not named is not paid."""
    shaping: bool = False
    """Whether F = gamma^d Phi(s') - Phi(s) is added, with the recorded potentials."""
    on_truncation: OnTruncation = OnTruncation.EXCLUDE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episode:
    """One trajectory with a reward."""

    id: str
    rewards_K: Doubles
    """Everything paid in a turn; the task reward is paid once, in the last."""
    values_K: Doubles | None
    """V(h_k) before each turn as recorded when sampling; None without a critic."""
    final_value: float
    """V(h_T): exactly 0 when terminated."""
    durations_K: Doubles
    """Task units."""
    terminated: bool
    task_reward: float
    """The verdict's reward, before components and shaping; 0 for a bootstrapped cut without a verdict."""


def episode(trajectory: Trajectory, rules: CreditRules) -> Episode | Exclusion:
    """Read one trajectory under the experiment's rules.

    Raises:
        RecordError: a value the rules need is not in the record.
    """
    outcome = trajectory.outcome
    if outcome.infra_error:
        return Exclusion.INFRA_ERROR
    if not trajectory.turns:
        return Exclusion.NO_TURN
    if outcome.truncated and rules.on_truncation is OnTruncation.EXCLUDE:
        return Exclusion.TRUNCATED
    bootstraps = outcome.truncated and rules.on_truncation is OnTruncation.BOOTSTRAP
    task_reward = trajectory.reward
    if task_reward is None and not bootstraps:
        return Exclusion.NO_REWARD
    if bootstraps and trajectory.final_value is None:
        raise RecordError(
            f"{trajectory.id}: on_truncation = bootstrap needs V(h_T), which no critic recorded; "
            "use an algorithm with a critic, or exclude or terminal"
        )
    durations_K = np.array([turn.duration for turn in trajectory.turns], dtype=np.float64)
    rewards_K = np.array(
        [sum(w * turn.rewards.get(name, 0.0) for name, w in rules.components.items()) for turn in trajectory.turns],
        dtype=np.float64,
    )
    rewards_K[-1] += task_reward or 0.0
    if rules.shaping:
        rewards_K += _shaping(trajectory, durations_K, rules.gamma)
    values = [turn.estimate("value") for turn in trajectory.turns]
    known = [value for value in values if value is not None]
    return Episode(
        id=trajectory.id,
        rewards_K=rewards_K,
        values_K=np.array(known, dtype=np.float64) if len(known) == len(values) else None,
        final_value=float(trajectory.final_value or 0.0) if bootstraps else 0.0,
        durations_K=durations_K,
        terminated=outcome.terminated,
        task_reward=float(task_reward or 0.0),
    )


def _shaping(trajectory: Trajectory, durations_K: Doubles, gamma: float) -> Doubles:
    """F_k = gamma^d_k Phi(s_{k+1}) - Phi(s_k); Phi of a terminal state is 0, a collector's cut keeps its own.

    Ng, Harada and Russell, 1999; with durations, the semi-MDP form.
    """
    potentials = [turn.potential for turn in trajectory.turns]
    if any(value is None for value in potentials):
        raise RecordError(f"{trajectory.id}: shaping needs a potential before every turn; the environment offers none")
    final = 0.0 if trajectory.outcome.terminated else trajectory.final_potential
    if final is None:
        raise RecordError(f"{trajectory.id}: a cut episode needs the potential at the cut; it must not be zeroed")
    phi = np.array([*potentials, final], dtype=np.float64)
    shaped: Doubles = gamma**durations_K * phi[1:] - phi[:-1]
    return shaped
