"""Costs in the credit: by hand, turn by turn."""

from dataclasses import replace

import numpy as np
import pytest

from kifu.credit import Episode, discounted_returns
from kifu.credit.reading import RewardRules, read_episode
from kifu.records import (
    Action,
    Charge,
    Cost,
    EnvironmentRef,
    Origin,
    Outcome,
    Provenance,
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

CALL = ToolCall(name="look")


def spoken(turn: int, count: int) -> Span:
    return Span(
        origin=Origin.POLICY,
        turn=turn,
        token_ids=as_ints(range(count)),
        logprobs=as_floats([-0.5] * count),
        policy_version=0,
        sampling=Sampling(),
    )


RECORD = Trajectory(
    key=RolloutKey(seed=0, step=0, group=0, member=0),
    task=TaskRef(id="t"),
    environment=EnvironmentRef(id="e", version="1", seed=0),
    provenance=Provenance(),
    tapes=(
        Tape(
            spans=(
                Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints([9])),
                spoken(0, 2),
                Span(origin=Origin.ENVIRONMENT, turn=1, token_ids=as_ints([7] * 5)),
                spoken(1, 4),
            )
        ),
    ),
    turns=(
        Turn(
            index=0,
            start=1,
            stop=3,
            seconds=1.5,
            action=Action(sampled=(CALL, CALL), executed=(CALL, CALL)),
            rewards={"clue": 1.0},
        ),
        Turn(index=1, start=8, stop=12, seconds=0.25),
    ),
    outcome=Outcome(reason=StopReason.SUCCESS),
    verdict=Verdict(success=True, score=1.0),
)


def read(*charges: Charge, record: Trajectory = RECORD) -> Episode:
    found = read_episode(record, RewardRules(gamma=0.5, components={"clue": 0.5}, charges=charges))
    assert isinstance(found, Episode)
    return found


@pytest.mark.parametrize(
    ("cost", "rewards"),
    [
        (Cost.TOKENS, [0.5 - 2 * 0.125, 1.0 - 4 * 0.125]),
        (Cost.TURNS, [0.5 - 0.125, 1.0 - 0.125]),
        (Cost.CALLS, [0.5 - 2 * 0.125, 1.0]),
        (Cost.SECONDS, [0.5 - 1.5 * 0.125, 1.0 - 0.25 * 0.125]),
    ],
)
def test_every_turn_pays_for_what_it_cost(cost: Cost, rewards: list[float]) -> None:
    assert read(Charge(cost=cost, weight=0.125)).rewards_K.tolist() == rewards


def test_the_returns_discount_costs_like_any_reward() -> None:
    episode = read(Charge(cost=Cost.TOKENS, weight=0.125), Charge(cost=Cost.CALLS, weight=0.25))
    first, last = 0.5 - 2 * 0.125 - 2 * 0.25, 1.0 - 4 * 0.125
    found = discounted_returns(episode.rewards_K, gamma=0.5)
    np.testing.assert_allclose(found, [first + 0.5 * last, last])


def test_over_a_limit_the_verdict_is_a_failure_and_the_way_is_still_paid() -> None:
    episode = read(Charge(cost=Cost.TOKENS, limit=5))
    assert episode.rewards_K.tolist() == [0.5, 0.0]
    assert (episode.outcome, episode.success) == (0.0, False)


def test_within_a_limit_nothing_changes() -> None:
    episode = read(Charge(cost=Cost.TOKENS, limit=6))
    assert episode.rewards_K.tolist() == [0.5, 1.0]
    assert (episode.outcome, episode.success) == (1.0, True)


def test_a_failure_stays_one_within_a_limit() -> None:
    failed = replace(RECORD, verdict=Verdict(success=False))
    episode = read(Charge(cost=Cost.TOKENS, limit=6), record=failed)
    assert (episode.outcome, episode.success) == (0.0, False)
