"""A record read as rewards per turn: what is paid when, with its exact value."""

from dataclasses import replace

import numpy as np
import pytest

from kifu.credit import Episode
from kifu.credit.reading import RewardRules, read_episode
from kifu.records import (
    Action,
    EnvironmentRef,
    Estimate,
    Finish,
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


def trajectory(score: float | None, components: tuple[dict[str, float], ...]) -> Trajectory:
    count = len(components)
    return Trajectory(
        key=RolloutKey(seed=0, step=0, group=0, member=0),
        task=TaskRef(id="t"),
        environment=EnvironmentRef(id="e", version="1", seed=0),
        provenance=Provenance(),
        tapes=(Tape(spans=(Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints(range(count + 1))),)),),
        turns=tuple(Turn(index=at, start=at, stop=at + 1, rewards=paid) for at, paid in enumerate(components)),
        outcome=Outcome(reason=StopReason.FAILURE),
        verdict=Verdict(success=False, score=score),
    )


@pytest.mark.parametrize("score", [0.25, 0.999, -1.5, 1.0, 0.0])
def test_a_partial_score_is_paid_in_full_at_the_last_turn(score: float) -> None:
    episode = read_episode(trajectory(score, ({}, {})), RewardRules())
    assert isinstance(episode, Episode)
    assert episode.rewards_K.dtype == np.float64
    assert episode.rewards_K.tolist() == [0.0, score]


def test_a_component_is_paid_where_it_has_a_weight_and_only_there() -> None:
    record = trajectory(0.5, ({"looked": 1.0, "noise": 7.0}, {"looked": 2.0}))
    episode = read_episode(record, RewardRules(components={"looked": 0.25}))
    assert isinstance(episode, Episode)
    assert episode.rewards_K.tolist() == [0.25, 0.5 + 0.5]


def test_without_a_score_success_counts_as_0_or_1() -> None:
    episode = read_episode(trajectory(None, ({},)), RewardRules())
    assert isinstance(episode, Episode)
    assert episode.rewards_K.tolist() == [0.0]


def test_estimates_and_contexts_of_a_turn_become_its_facts() -> None:
    record = trajectory(1.0, ({}, {}))
    first, last = record.turns
    names = {"gold_logprob": -2.0, "hindsight_logprob": -0.5}
    found = tuple(Estimate(name=name, value=value, policy_version=3) for name, value in names.items())
    after = Estimate(name="gold_logprob_after", value=-0.25, policy_version=3)
    known = replace(record, turns=(replace(first, estimates=found), replace(last, estimates=(after,))))

    episode = read_episode(known, RewardRules())

    assert isinstance(episode, Episode)
    assert [turn.gold_logprob for turn in episode.turns] == [-2.0, None]
    assert [turn.hindsight_logprob for turn in episode.turns] == [-0.5, None]
    assert [turn.segment for turn in episode.turns] == [0, 0]
    assert episode.final_gold_logprob == -0.25


def test_entropies_of_tokens_are_facts_only_where_every_token_has_one() -> None:
    """Two turns of two sampled tokens; of the second only the first token's entropy was kept."""
    span = Span(
        origin=Origin.POLICY,
        turn=0,
        token_ids=as_ints([5, 6]),
        logprobs=as_floats([-1.0, -2.0]),
        policy_version=0,
        sampling=Sampling(),
    )
    kept = tuple(Estimate(name="token_entropy", value=value, policy_version=0) for value in (0.5, 0.25))
    record = trajectory(1.0, ({}, {}))
    first, last = record.turns
    record = replace(
        record,
        tapes=(Tape(spans=(span, replace(span, turn=1))),),
        turns=(replace(first, stop=2, estimates=kept), replace(last, start=2, stop=4, estimates=kept[:1])),
    )

    episode = read_episode(record, RewardRules())

    assert isinstance(episode, Episode)
    found = [turn.entropies_N for turn in episode.turns]
    assert found[0] is not None
    assert found[0].tolist() == [0.5, 0.25]
    assert found[1] is None


def test_the_value_of_a_turn_is_that_of_its_token_where_it_has_no_second_one() -> None:
    """Three turns of one, two and no sampled tokens, each valued before it; a fourth nobody valued."""
    one, two = (
        Span(
            origin=Origin.POLICY,
            turn=at,
            token_ids=as_ints([5] * count),
            logprobs=as_floats([-1.0] * count),
            policy_version=0,
            sampling=Sampling(),
        )
        for at, count in enumerate((1, 2))
    )
    record = trajectory(1.0, ({}, {}, {}, {}))
    places = ((0, 1), (1, 3), (3, 3), (3, 3))
    valued = [(Estimate(name="value", value=0.25 * at, policy_version=0),) for at in range(3)]
    turns = tuple(
        replace(turn, start=start, stop=stop, estimates=estimates)
        for turn, (start, stop), estimates in zip(record.turns, places, [*valued, ()], strict=True)
    )

    episode = read_episode(replace(record, tapes=(Tape(spans=(one, two)),), turns=turns), RewardRules())

    assert isinstance(episode, Episode)
    found = [None if turn.values_N is None else turn.values_N.tolist() for turn in episode.turns]
    assert found == [[0.0], None, [], None]


@pytest.mark.parametrize(
    ("turn", "is_void"),
    [
        (Turn(index=0, text="the answer is 4"), False),
        (Turn(index=0, text="the answer is", finish=Finish.LENGTH), True),
        (Turn(index=0, text="the answer is", finish=Finish.CONTEXT), True),
        (Turn(index=0, text=" \n"), True),
        (Turn(index=0, action=Action(sampled=(CALL,), executed=(CALL,))), False),
        (Turn(index=0, action=Action(sampled=(CALL,), rewriter="budget/1")), False),
        (Turn(index=0, finish=Finish.LENGTH, action=Action(sampled=(CALL,), executed=(CALL,))), False),
        (Turn(index=0, text="<tool_call>{", action=Action(parse_error="no closing tag")), True),
    ],
)
def test_a_turn_is_void_without_a_readable_call_and_without_an_answer(turn: Turn, is_void: bool) -> None:
    record = trajectory(1.0, ({},))
    episode = read_episode(replace(record, turns=(replace(turn, start=0, stop=1),)), RewardRules())
    assert isinstance(episode, Episode)
    assert [facts.is_void for facts in episode.turns] == [is_void]
