"""Made-up trajectories as records, for checks that go the whole way from a record to a row.

Axes: ``K`` turns.
"""

from collections.abc import Sequence
from itertools import pairwise

from kifu.records import (
    Action,
    EnvironmentRef,
    Estimate,
    Group,
    Origin,
    Outcome,
    Provenance,
    Purpose,
    RolloutKey,
    Sampling,
    Span,
    StopReason,
    Tape,
    TaskRef,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
    as_floats,
    as_ints,
)
from kifu.records.turns import TOKEN_ENTROPY
from kifu.testing.trials import Trial


def records_of(
    groups: Sequence[Sequence[Trial]], *, purpose: Purpose = Purpose.TRAIN, with_failures: bool = False
) -> list[Group]:
    """The groups as the loop would have recorded them.

    Args:
        groups: without branches.
        purpose: whose tokens they are; of a demonstration they carry no logprob.
        with_failures: a copy of every first member, ended by an infrastructure error, stands in each group.
    """
    found = []
    for at, group in enumerate(groups):
        members = [
            record_of(trial, RolloutKey(seed=0, step=0, group=at, member=2 * member, purpose=purpose))
            for member, trial in enumerate(group)
        ]
        if with_failures:
            key = RolloutKey(seed=0, step=0, group=at, member=1, purpose=purpose)
            members.insert(1, record_of(group[0], key, reason=StopReason.ENV_ERROR))
        found.append(Group(task=TaskRef(id=f"task{at}"), members=tuple(members)))
    return found


def record_of(trial: Trial, key: RolloutKey, *, reason: StopReason = StopReason.SUCCESS) -> Trajectory:
    """One trajectory with one context; an infrastructure error takes its verdict away."""
    failed, episode = Outcome(reason=reason).infra_error, trial.episode
    return Trajectory(
        key=key,
        task=TaskRef(id=f"task{key.group}"),
        environment=EnvironmentRef(
            id="made_up", version="1", seed=0, initial_digest="start", final_digest=episode.turns[-1].next_state
        ),
        provenance=Provenance(),
        tapes=(Tape(spans=_spans(trial, is_sampled=key.purpose is not Purpose.DEMONSTRATION)),),
        turns=tuple(_turn(trial, at) for at in range(episode.num_turns)),
        outcome=Outcome(reason=reason),
        verdict=None if failed else Verdict(success=episode.success, score=episode.outcome),
    )


def _spans(trial: Trial, *, is_sampled: bool) -> tuple[Span, ...]:
    found, at = [], 0
    for turn in range(trial.episode.num_turns):
        here_N = trial.turns_N == turn
        start, stop = int(trial.positions_N[here_N][0]), int(trial.positions_N[here_N][-1]) + 1
        before, ids = trial.token_ids[at:start], as_ints(trial.token_ids[start:stop])
        origin = Origin.PROMPT if turn == 0 else Origin.ENVIRONMENT
        found.append(Span(origin=origin, turn=turn, token_ids=as_ints(before)))
        if is_sampled:
            found.append(
                Span(
                    origin=Origin.POLICY,
                    turn=turn,
                    token_ids=ids,
                    logprobs=as_floats(trial.behaviour_N[here_N]),
                    policy_version=0,
                    sampling=Sampling(),
                )
            )
        else:
            found.append(Span(origin=Origin.DEMONSTRATION, turn=turn, token_ids=ids))
        at = stop
    return tuple(found)


def _turn(trial: Trial, at: int) -> Turn:
    episode, facts = trial.episode, trial.episode.turns[at]
    here_N = trial.positions_N[trial.turns_N == at]
    gold = [*(turn.gold_logprob for turn in episode.turns), episode.final_gold_logprob]
    after = list(pairwise(gold))[at][1]
    known = {
        "value": None if episode.values_K is None else float(episode.values_K[at]),
        "entropy": facts.entropy,
        "gold_logprob": facts.gold_logprob,
        "gold_logprob_after": after,
        "hindsight_logprob": facts.hindsight_logprob,
    }
    tokens = [] if facts.entropies_N is None else facts.entropies_N.tolist()
    calls = (ToolCall(name="act"),) if facts.calls_tool and not facts.is_void else ()
    return Turn(
        index=at,
        start=int(here_N[0]),
        stop=int(here_N[-1]) + 1,
        text="an answer",
        action=Action(sampled=calls, executed=calls, parse_error="made up" if facts.is_void else None),
        rewards=dict(facts.rewards),
        duration=1.0 if episode.durations_K is None else float(episode.durations_K[at]),
        state_key=facts.state,
        estimates=tuple(
            Estimate(name=name, value=value, policy_version=0)
            for name, value in [*known.items(), *((TOKEN_ENTROPY, entropy) for entropy in tokens)]
            if value is not None
        ),
    )
