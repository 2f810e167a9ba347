"""The numbers that credit works on, of trajectories that a user wrote down.

Axes: ``K`` turns, ``N`` sampled tokens of one turn.
"""

from collections.abc import Sequence

import numpy as np

from kifu.credit import (
    Bootstrap,
    BranchPoint,
    CutTreatment,
    Doubles,
    Episode,
    Exclude,
    Terminal,
    TurnFacts,
    shaping_rewards,
)
from kifu.errors import ArgumentError
from kifu.records import Outcome, StopReason
from kifu.training.inspection.trajectory_fields import Given, GivenToken, GivenTrajectory, GivenTurn


def cut_treatment(given: Given) -> CutTreatment:
    """What the document says about trajectories that the collector cut."""
    treatments: dict[str, CutTreatment] = {"exclude": Exclude(), "terminal": Terminal(), "bootstrap": Bootstrap()}
    return treatments[given.on_truncation]


def episode_of(item: GivenTrajectory, given: Given, *, tree: str, needs_reward: bool) -> Episode | str:
    """The numbers credit works on, or why the trajectory takes no part.

    Args:
        item: one trajectory.
        given: the document it stands in.
        tree: of `kifu.training.inspection.trajectory_branches.trees_of`.
        needs_reward: False for methods that look at no reward.
    """
    outcome = Outcome(reason=StopReason(item.outcome or StopReason.SUCCESS))
    if outcome.infra_error:
        return f"infrastructure error ({item.outcome}): it says nothing about the policy"
    cut = outcome.truncated and given.on_truncation != "terminal"
    if cut and given.on_truncation == "exclude":
        return f"cut by the collector ({item.outcome}) and excluded"
    if cut and item.final_value is None:
        return f"cut by the collector ({item.outcome}) without `final_value`, so it is excluded"
    if item.reward is None and needs_reward and not cut:
        return "no reward: the verifier could not tell"
    durations_K = [turn.duration for turn in item.turns]
    rewards_K = np.array([_paid(turn, given) for turn in item.turns])
    rewards_K[-1] += item.reward or 0.0
    if given.shaping:
        rewards_K = rewards_K + _shaping(item, given, durations_K, terminated=not cut)
    values = [turn.value for turn in item.turns]
    known = [value for value in values if value is not None]
    return Episode(
        rewards_K=rewards_K,
        terminated=not cut,
        values_K=np.array(known) if len(known) == len(values) else None,
        final_value=item.final_value if cut else None,
        durations_K=np.array(durations_K),
        id=item.id,
        outcome=item.reward,
        success=item.success,
        turns=tuple(_facts(item, at) for at in range(len(item.turns))),
        tree=tree,
        branch=None if item.branch.parent is None else BranchPoint(parent=item.branch.parent, turn=item.branch.turn),
        model_score=item.model_score,
        final_gold_logprob=item.final_gold_logprob,
    )


def _paid(turn: GivenTurn, given: Given) -> float:
    return turn.reward + sum(weight * turn.rewards.get(name, 0.0) for name, weight in given.components.items())


def _shaping(item: GivenTrajectory, given: Given, durations_K: list[float], *, terminated: bool) -> Doubles:
    known = [turn.potential for turn in item.turns if turn.potential is not None]
    if len(known) != len(item.turns):
        at = next(at for at, turn in enumerate(item.turns) if turn.potential is None)
        raise ArgumentError(f"trajectory {item.id}, turn {at}: shaping needs `potential`, which is not given")
    if not terminated and item.final_potential is None:
        raise ArgumentError(
            f"trajectory {item.id}: it was cut, and shaping needs `final_potential`, which is not given; a cut must "
            "not zero it"
        )
    return shaping_rewards(
        known,
        gamma=given.gamma,
        terminated=terminated,
        final_potential=item.final_potential,
        durations_K=durations_K,
    )


def _facts(item: GivenTrajectory, at: int) -> TurnFacts:
    turn = item.turns[at]
    after = item.turns[at + 1].state if at + 1 < len(item.turns) else None
    entropies_N = column(turn.sampled, "entropy")
    entropy = turn.entropy
    if entropy is None and entropies_N is not None:
        entropy = float(entropies_N.mean())
    return TurnFacts(
        num_tokens=len(turn.sampled),
        state=turn.state,
        next_state=after if turn.next_state is None else turn.next_state,
        entropy=entropy,
        gold_logprob=turn.gold_logprob,
        hindsight_logprob=turn.hindsight_logprob,
        segment=turn.segment,
        rewards={"reward": turn.reward, **turn.rewards},
        tool=turn.tool,
        action=turn.action,
        calls_tool=turn.tool != "" if turn.calls_tool is None else turn.calls_tool,
        is_void=turn.is_void,
        logprobs_N=column(turn.sampled, "behaviour_logprob"),
        reference_logprobs_N=column(turn.sampled, "reference_logprob"),
        entropies_N=entropies_N,
        values_N=column(turn.sampled, "value"),
    )


def column(tokens: Sequence[GivenToken], field: str) -> Doubles | None:
    """``[N]`` one field of every token; None when a token lacks it."""
    found = [getattr(token, field) for token in tokens]
    return None if any(value is None for value in found) else np.array(found, dtype=np.float64)
