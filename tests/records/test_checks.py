"""The check before every update finds what a record cannot answer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kifu.records import (
    BlobStore,
    EnvironmentRef,
    Origin,
    Outcome,
    Purpose,
    RolloutKey,
    Sampling,
    Span,
    StopReason,
    Support,
    SupportKind,
    Tape,
    Trajectory,
    Turn,
    Verdict,
    as_floats,
    as_ints,
    pack_bitmap,
    placed_spans,
    pre_update_check,
    rebuild_check,
    turn_logprobs,
)

Make = Callable[..., Trajectory]


def policy(*ids: int, sampling: Sampling | None = None, support: tuple[Support | None, ...] | None = None) -> Span:
    return Span(
        origin=Origin.POLICY,
        turn=0,
        token_ids=as_ints(ids),
        logprobs=as_floats([-0.5] * len(ids)),
        policy_version=0,
        sampling=sampling or Sampling(),
        support=support,
    )


PROMPT = Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints([1]))


def key(purpose: Purpose) -> RolloutKey:
    return RolloutKey(seed=0, step=0, group=0, member=0, purpose=purpose)


def test_a_good_record_passes(make: Make) -> None:
    assert pre_update_check(make()) == []


def test_spans_are_placed_once_on_the_tape_that_owns_them(make: Make) -> None:
    placed = [(item.tape, item.start, item.stop) for item in placed_spans(make(), origin=Origin.POLICY)]
    assert placed == [(0, 3, 5), (1, 6, 7)]


def test_turn_logprobs_are_sums_over_sampled_tokens(make: Make) -> None:
    assert turn_logprobs(make()) == {0: -0.75, 1: pytest.approx(-0.1)}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"key": key(Purpose.EVALUATION)}, "made for evaluation"),
        ({"verdict": Verdict(success=None)}, "absent is not zero"),
        ({"verdict": None}, "the final reward cannot be rebuilt"),
        ({"verdict": None, "outcome": Outcome(reason=StopReason.TURN_LIMIT)}, "absent is not zero"),
        ({"verdict": None, "outcome": Outcome(reason=StopReason.ENV_ERROR)}, "infrastructure failed (env_error)"),
        ({"environment": EnvironmentRef(id="e", version="1", seed=0, initial_digest="i")}, "the final state digest"),
        ({"turns": (Turn(index=0, start=3, stop=5),)}, "belong to turn 1, the record has 1 turns"),
        ({"turns": (Turn(index=0, start=4, stop=6), Turn(index=1, tape=1, start=6, stop=7))}, "outside turn 0"),
        ({"turns": (Turn(index=0, start=3, stop=6), Turn(index=1, start=6, stop=7))}, "outside turn 1"),
        ({"tapes": (Tape(spans=(PROMPT,)), Tape(spans=(PROMPT,))), "turns": ()}, "no token of origin policy"),
        (
            {"tapes": (Tape(spans=(policy(5),)),), "turns": (Turn(index=0, start=0, stop=1),)},
            "no context to be sampled from",
        ),
        (
            {
                "tapes": (Tape(spans=(PROMPT, policy(5, sampling=Sampling(temperature=None)))),),
                "turns": (Turn(index=0, start=1, stop=2),),
            },
            "sampled greedily",
        ),
        (
            {
                "tapes": (Tape(spans=(PROMPT, policy(5, sampling=Sampling(untrainable=("logit bias",))))),),
                "turns": (Turn(index=0, start=1, stop=2),),
            },
            "sampled logit bias",
        ),
    ],
)
def test_a_record_that_cannot_be_trained_on_says_why(make: Make, changed: dict[str, object], why: str) -> None:
    assert any(why in item for item in pre_update_check(make(**changed)))


def test_an_answer_ends_naturally_only_without_a_call(make: Make) -> None:
    natural = Outcome(reason=StopReason.NATURAL_END)
    assert rebuild_check(make(outcome=natural)) == []
    called = make().turns[0]
    record = make(
        outcome=natural,
        turns=(called,),
        tapes=(Tape(spans=(Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints(range(6))),)),),
    )
    assert rebuild_check(record) == ["stop reason natural_end, but the last turn executed a call"]


def test_a_cut_episode_may_be_bootstrapped(make: Make) -> None:
    record = make(verdict=None, outcome=Outcome(reason=StopReason.TURN_LIMIT), final_value=0.5)
    assert pre_update_check(record) == []


def test_an_environment_without_snapshots_has_no_digest_at_either_end(make: Make) -> None:
    environment = replace(make().environment, initial_digest=None, final_digest=None)
    assert pre_update_check(make(environment=environment)) == []


def test_a_demonstration_needs_demonstrated_tokens_and_no_reward(make: Make) -> None:
    span = Span(origin=Origin.DEMONSTRATION, turn=0, token_ids=as_ints([4]))
    changed = {"key": key(Purpose.DEMONSTRATION), "verdict": None, "outcome": Outcome(reason=StopReason.NATURAL_END)}
    turns = (Turn(index=0, start=1, stop=2),)
    assert pre_update_check(make(tapes=(Tape(spans=(PROMPT, span)),), turns=turns, **changed)) == []
    missing = pre_update_check(make(tapes=(Tape(spans=(PROMPT,)),), turns=(), **changed))
    assert missing == ["no token of origin demonstration"]


def test_a_token_outside_its_bitmap_is_found(make: Make, tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    digest = blobs.put(pack_bitmap(np.array([token in (4, 9) for token in range(16)])))
    lost = Support(kind=SupportKind.MASK, ids=as_ints([]), mask="0" * 64)
    mask = Support(kind=SupportKind.MASK, ids=as_ints([]), mask=digest)
    span = policy(9, 4, 5, 99, support=(mask, None, mask, mask))
    turns = (Turn(index=0, start=1, stop=5),)
    found = rebuild_check(make(tapes=(Tape(spans=(PROMPT, span)),), turns=turns), blobs=blobs)
    assert found == ["token 5 at 3 of tape 0 is outside its support", "token 99 at 4 of tape 0 is outside its support"]
    span = policy(9, support=(lost,))
    (why,) = rebuild_check(
        make(tapes=(Tape(spans=(PROMPT, span)),), turns=(Turn(index=0, start=1, stop=2),)), blobs=blobs
    )
    assert "no blob 000000000000" in why
