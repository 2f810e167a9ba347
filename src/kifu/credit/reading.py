"""From a trajectory to the numbers credit works on, under the reward side of the experiment.

Axes: ``K`` turns.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from kifu.credit.arrays import Doubles
from kifu.credit.episode import Bootstrap, BranchPoint, CutTreatment, Episode, Exclude, TurnFacts
from kifu.credit.shaping import shaping_rewards
from kifu.errors import RecordError
from kifu.records import Finish, Origin, Purpose, Trajectory, Turn
from kifu.records.charges import Charge, constrained_reward, cost_by_turn, limits_exceeded


class Exclusion(StrEnum):
    """Why a trajectory has no credit. It leaves the statistics of its group untouched."""

    INFRA_ERROR = "infra_error"
    TRUNCATED = "truncated"
    NO_REWARD = "no_reward"
    """The verifier could not tell."""
    NO_TURN = "no_turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRules:
    """How a trajectory's record becomes rewards; layer 4 of the experiment."""

    gamma: float = 1.0
    components: Mapping[str, float] = field(default_factory=dict)
    """Weight of each step component; one that is not named is not paid."""
    shaping: bool = False
    """Whether F = gamma^tau Phi(s') - Phi(s) is added, with the recorded potentials."""
    cut: CutTreatment = field(default_factory=Exclude)
    """What an episode cut by the collector is worth."""
    charges: tuple[Charge, ...] = ()
    """Costs that are taken from the rewards, and limits of costs that a success must keep."""


def read_episode(trajectory: Trajectory, rules: RewardRules) -> Episode | Exclusion:
    """Rewards per turn, the task reward paid once in the last turn, with values and durations as recorded.

    A bootstrapped cut may lack a verdict; then only its components and V(h_T) count.

    Raises:
        RecordError: a value the rules need is not in the record.
    """
    outcome = trajectory.outcome
    if outcome.infra_error:
        return Exclusion.INFRA_ERROR
    if not trajectory.turns:
        return Exclusion.NO_TURN
    if outcome.truncated and isinstance(rules.cut, Exclude):
        return Exclusion.TRUNCATED
    bootstraps = outcome.truncated and isinstance(rules.cut, Bootstrap)
    if trajectory.reward is None and not bootstraps:
        return Exclusion.NO_REWARD
    if bootstraps and trajectory.final_value is None:
        raise RecordError(
            f"trajectory {trajectory.id}: on_truncation = bootstrap needs V(h_T), which no critic recorded; "
            "use an engine and algorithm with a critic, or exclude or terminal"
        )
    turns = trajectory.turns
    paid = [sum(weight * turn.rewards.get(name, 0.0) for name, weight in rules.components.items()) for turn in turns]
    rewards_K = np.array(paid, dtype=np.float64)
    reward = constrained_reward(trajectory, rules.charges)
    rewards_K[-1] += reward or 0.0
    for charge in rules.charges:
        if charge.weight is not None:
            rewards_K -= charge.weight * np.array(cost_by_turn(trajectory, charge.cost), dtype=np.float64)
    durations_K = np.array([turn.duration for turn in turns], dtype=np.float64)
    if rules.shaping:
        rewards_K = rewards_K + _shaping(trajectory, durations_K, rules.gamma)
    values = [turn.estimate("value") for turn in turns]
    known = [value for value in values if value is not None]
    return Episode(
        rewards_K=rewards_K,
        terminated=not bootstraps,
        values_K=np.array(known, dtype=np.float64) if len(known) == len(values) else None,
        final_value=trajectory.final_value if bootstraps else None,
        durations_K=durations_K,
        id=trajectory.id,
        outcome=reward,
        success=_succeeds(trajectory, rules),
        turns=_facts(trajectory),
        tree=trajectory.id if trajectory.branch is None else trajectory.branch.tree,
        branch=_branch(trajectory),
        final_gold_logprob=turns[-1].estimate("gold_logprob_after"),
    )


def _succeeds(trajectory: Trajectory, rules: RewardRules) -> bool | None:
    if trajectory.verdict is None or trajectory.verdict.success is None:
        return None
    return trajectory.verdict.success and not limits_exceeded(trajectory, rules.charges)


def trained_origin(trajectory: Trajectory) -> Origin:
    """Whose tokens are trained: the demonstrator's in a demonstration, else the policy's."""
    demonstration = trajectory.key.purpose is Purpose.DEMONSTRATION
    return Origin.DEMONSTRATION if demonstration else Origin.POLICY


def _branch(trajectory: Trajectory) -> BranchPoint | None:
    branch = trajectory.branch
    return None if branch is None else BranchPoint(parent=branch.parent, turn=branch.turn)


def _facts(trajectory: Trajectory) -> tuple[TurnFacts, ...]:
    origin = trained_origin(trajectory)
    logprobs: dict[int, list[Doubles]] = {turn.index: [] for turn in trajectory.turns}
    lengths = dict.fromkeys(logprobs, 0)
    for span in (span for tape in trajectory.tapes for span in tape.spans if span.origin is origin):
        lengths[span.turn] += len(span)
        if span.logprobs is not None:
            logprobs[span.turn].append(span.logprobs.astype(np.float64))
    states = [turn.state_key for turn in trajectory.turns]
    ends = [*states[1:], trajectory.environment.final_digest]
    return tuple(
        TurnFacts(
            num_tokens=lengths[turn.index],
            state=turn.state_key,
            next_state=ends[turn.index],
            entropy=turn.estimate("entropy"),
            gold_logprob=turn.estimate("gold_logprob"),
            hindsight_logprob=turn.estimate("hindsight_logprob"),
            rewards=turn.rewards,
            tool=" ".join(call.name for call in turn.action.executed),
            action=_action(turn),
            calls_tool=bool(turn.action.executed),
            segment=turn.tape,
            is_void=_is_void(turn),
            logprobs_N=np.concatenate(logprobs[turn.index]) if logprobs[turn.index] else None,
            entropies_N=_entropies(turn, lengths[turn.index]),
            values_N=_token_values(turn, lengths[turn.index]),
        )
        for turn in trajectory.turns
    )


def _action(turn: Turn) -> str:
    """The executed calls as canonical JSON; the text of a turn without one."""
    calls = [[call.name, dict(call.arguments)] for call in turn.action.executed]
    return json.dumps(calls, sort_keys=True, default=str) if calls else turn.text


def _entropies(turn: Turn, length: int) -> Doubles | None:
    """``[N]`` where the entropy of every sampled token of the turn was kept."""
    found = turn.token_entropies
    return np.array(found, dtype=np.float64) if len(found) == length else None


def _token_values(turn: Turn, length: int) -> Doubles | None:
    """``[N]`` V before every token of a turn of at most one: the value before the turn. None of longer turns."""
    value = turn.estimate("value")
    return None if value is None or length > 1 else np.full(length, value, dtype=np.float64)


def _is_void(turn: Turn) -> bool:
    """A turn without a call is the final answer, unless it was cut off or says nothing."""
    if turn.action.parse_error is not None:
        return True
    return not turn.action.sampled and (turn.finish is not Finish.STOP or not turn.text.strip())


def _shaping(trajectory: Trajectory, durations_K: Doubles, gamma: float) -> Doubles:
    known = [turn.potential for turn in trajectory.turns if turn.potential is not None]
    if len(known) != len(trajectory.turns):
        raise RecordError(
            f"trajectory {trajectory.id}: shaping needs a potential before every turn; the environment offers none"
        )
    if not trajectory.outcome.terminated and trajectory.final_potential is None:
        raise RecordError(
            f"trajectory {trajectory.id}: it was cut, and shaping needs `final_potential`, which nobody recorded"
        )
    return shaping_rewards(
        known,
        gamma=gamma,
        terminated=trajectory.outcome.terminated,
        final_potential=trajectory.final_potential,
        durations_K=durations_K,
    )
