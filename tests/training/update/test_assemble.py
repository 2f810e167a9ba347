"""From records to rows: what is trained, with which weight, and which bucket takes the rest."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Bootstrap
from kifu.credit.reading import RewardRules
from kifu.records import (
    Finish,
    Group,
    Origin,
    Purpose,
    Sampling,
    Span,
    StopReason,
    Tape,
    TaskRef,
    Trajectory,
    Turn,
    as_floats,
    as_ints,
)
from kifu.records.ledger import Bucket
from kifu.training.update.assemble import Assembled, assemble

Make = Callable[..., Trajectory]


def group(*members: Trajectory) -> Group:
    return Group(task=TaskRef(id=members[0].task.id), members=members)


def put(
    *groups: Group,
    algorithm: str = "grpo",
    options: dict[str, Any] | None = None,
    rules: RewardRules | None = None,
    version: int = 0,
    max_age: int = 0,
) -> Assembled:
    return assemble(
        groups,
        algorithm=build_algorithm(algorithm, options),
        rules=rules or RewardRules(),
        version=version,
        max_age=max_age,
    )


def total(found: Assembled, losses: Sequence[Sequence[float]]) -> float:
    """The summed loss of token losses given per row."""
    return float(sum((row.weights * np.array(loss)).sum() for row, loss in zip(found.rows, losses, strict=True)))


@pytest.mark.parametrize(
    ("average", "mean"), [("token", 21 / 9), ("trajectory", 2.5), ("turn", 10 / 3), ("sum", (9 + 12) / 2)]
)
def test_weights_sum_token_losses_to_the_printed_means(make_record: Make, average: str, mean: float) -> None:
    members = (make_record([2, 1], reward=1.0), make_record([6], reward=0.0, member=1))

    found = put(group(*members), options={"average": average})

    assert total(found, [[1, 1, 7], [2] * 6]) == pytest.approx(mean, abs=1e-12)


def test_observations_are_in_no_denominator(make_record: Make) -> None:
    """40 sampled tokens among 330: dividing by all of them would dilute the gradient 8.25 times."""
    one = make_record([20, 20], reward=1.0, answer=287)
    other = make_record([20, 20], reward=0.0, member=1, answer=287)
    assert len(one.tape_ids(0)) == 330

    found = put(group(one, other), options={"average": "token"})

    assert found.denominators.tokens == 80
    assert [row.weights.tolist() for row in found.rows] == [[1 / 80] * 40] * 2
    assert len(one.tape_ids(0)) / (found.denominators.tokens / 2) == 8.25
    assert all(row.mask.sum() == 40 for row in found.rows)


@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_text_of_another_model_is_in_no_row(make_record: Make, algorithm: str) -> None:
    """Nobody recorded how probable EXTERNAL tokens were: they are in no loss, no mask and no denominator."""
    members = []
    for at, record in enumerate((make_record([2, 3], reward=1.0), make_record([2, 1], reward=0.0, member=1))):
        (tape,) = record.tapes
        spans = [
            Span(origin=Origin.EXTERNAL, turn=0, token_ids=span.token_ids)
            if span.origin is Origin.POLICY and span.turn == 0
            else span
            for span in tape.spans
        ]
        members.append(replace(record, tapes=(Tape(spans=tuple(spans)),)))
        assert sum(len(span) for span in spans if span.origin is Origin.EXTERNAL) == 2, at

    found = put(group(*members), algorithm=algorithm)

    own = {item.id: {7, 8, 9} if item.key.member == 0 else {7} for item in members}
    assert all(set(row.positions.tolist()) <= own[row.trajectory] for row in found.rows)
    assert found.denominators.tokens == sum(row.positions.size for row in found.rows)
    assert found.denominators.tokens == 4


@pytest.mark.parametrize(("max_age", "bucket"), [(0, Bucket.STALE), (1, Bucket.STALE), (2, Bucket.TRAINED)])
def test_a_rollout_older_than_the_limit_is_not_trained_and_enters_no_statistic(
    make_record: Make, max_age: int, bucket: Bucket
) -> None:
    """Sampled under versions 3, 3 and 1, trained at 3: the last is two versions behind."""
    members = [
        make_record([2], reward=1.0, version=3),
        make_record([2], reward=0.0, version=3, member=1),
        make_record([2], reward=0.5, version=1, member=2),
    ]
    found = put(group(*members), options={"std": "none"}, version=3, max_age=max_age)

    assert [found.buckets[member.id] for member in members] == [Bucket.TRAINED, Bucket.TRAINED, bucket]
    assert [row.advantages[0] for row in found.rows][:2] == pytest.approx([0.5, -0.5])
    assert len(found.rows) == (2 if bucket is Bucket.STALE else 3)


def test_a_row_holds_every_sampled_token_with_what_was_recorded(make_record: Make) -> None:
    members = (make_record([2, 3], reward=1.0), make_record([1], reward=0.0, member=1))

    found = put(group(*members))

    row = found.rows[0]
    assert row.token_ids.tolist() == [1, 2, 3, 100, 101, 9, 9, 102, 103, 104]
    assert row.positions.tolist() == [3, 4, 7, 8, 9]
    assert row.turns.tolist() == [0, 0, 1, 1, 1]
    assert row.behaviour_logprobs.tolist() == [-0.5] * 5
    assert row.temperatures.tolist() == [0.5] * 5
    assert [support.ids.tolist() for support in row.supports if support is not None] == [
        [token, token + 1] for token in (100, 101, 102, 103, 104)
    ]
    std = np.std([1.0, 0.0], ddof=1) + 1e-6
    assert row.advantages.tolist() == pytest.approx([0.5 / std] * 5)
    assert (found.denominators.tokens, found.denominators.turns, found.denominators.trajectories) == (6, 3, 2)


def test_rows_stand_in_group_and_member_order_whatever_is_left_out(make_record: Make) -> None:
    first = group(
        make_record([1], reward=1.0),
        make_record([1], reward=None, member=1, reason=StopReason.ENV_ERROR),
        make_record([1], reward=0.0, member=2),
    )
    second = group(*(make_record([1], reward=float(at), member=at, group=1, task="u") for at in range(2)))

    found = put(first, second)

    assert [row.trajectory.split("/", 3)[3] for row in found.rows] == [
        "g0000/m000/a0",
        "g0000/m002/a0",
        "g0001/m000/a0",
        "g0001/m001/a0",
    ]
    assert (found.groups, found.informative) == (2, 2)


class TestBuckets:
    """Every member leaves into exactly one bucket, and only its own fate decides which."""

    @pytest.mark.parametrize(
        ("changed", "bucket"),
        [
            ({}, Bucket.TRAINED),
            ({"reason": StopReason.ENV_ERROR, "reward": None}, Bucket.INFRA_ERROR),
            ({"reason": StopReason.VERIFIER_ERROR, "reward": None}, Bucket.INFRA_ERROR),
            ({"reason": StopReason.ENGINE_ERROR, "reward": None}, Bucket.INFRA_ERROR),
            ({"reason": StopReason.TURN_LIMIT}, Bucket.TRUNCATED_EXCLUDED),
            ({"reason": StopReason.TIME_LIMIT, "reward": None}, Bucket.TRUNCATED_EXCLUDED),
            ({"reason": StopReason.TASK_BUDGET}, Bucket.TRAINED),
            ({"reason": StopReason.NATURAL_END}, Bucket.TRAINED),
            ({"reason": StopReason.NATURAL_END, "reward": None}, Bucket.DEMONSTRATION_ONLY),
            ({"turns": []}, Bucket.DEMONSTRATION_ONLY),
            ({"sampling": Sampling(temperature=None)}, Bucket.DEMONSTRATION_ONLY),
            ({"sampling": Sampling(untrainable=("logit_bias",))}, Bucket.DEMONSTRATION_ONLY),
            ({"version": 2}, Bucket.STALE),
            ({"version": 3}, Bucket.TRAINED),
        ],
    )
    def test_of_one_member(self, make_record: Make, changed: dict[str, Any], bucket: Bucket) -> None:
        odd = make_record(**{"turns": [1], "member": 9, "version": 4, "reward": 0.5, **changed})
        sound = [make_record([1], reward=float(at), member=at, version=4) for at in range(2)]

        found = put(group(*sound, odd), version=4, max_age=1)

        assert found.buckets[odd.id] is bucket
        assert (odd.id in found.why) == (bucket is not Bucket.TRAINED)
        assert {found.buckets[item.id] for item in sound} == {Bucket.TRAINED}
        assert (odd.id in {row.trajectory for row in found.rows}) == (bucket is Bucket.TRAINED)
        if bucket is not Bucket.TRAINED:
            assert [row.advantages.tolist() for row in found.rows] == [
                row.advantages.tolist() for row in put(group(*sound), version=4, max_age=1).rows
            ]

    def test_an_evaluation_is_never_trained(self, make_record: Make) -> None:
        members = [make_record([1], reward=float(at), member=at, purpose=Purpose.EVALUATION) for at in range(2)]
        found = put(group(*members))
        assert set(found.buckets.values()) == {Bucket.DEMONSTRATION_ONLY}
        assert found.rows == ()

    def test_a_demonstration_is_trained_without_a_policy_token(self, make_record: Make) -> None:
        shown = make_record([2, 1], purpose=Purpose.DEMONSTRATION, version=0)
        found = put(group(shown), algorithm="sft", version=7)
        assert found.buckets == {shown.id: Bucket.TRAINED}
        row = found.rows[0]
        assert (row.positions.tolist(), row.advantages.tolist()) == ([3, 4, 7], [1.0] * 3)
        assert (row.temperatures.tolist(), row.behaviour_logprobs.tolist()) == ([1.0] * 3, [0.0] * 3)

    @pytest.mark.parametrize("rewards", [[0.0] * 4, [1.0] * 4, [1.0]])
    def test_a_group_that_compares_nothing_is_degenerate(self, make_record: Make, rewards: list[float]) -> None:
        members = [make_record([1 + at], reward=value, member=at) for at, value in enumerate(rewards)]
        found = put(group(*members))
        assert set(found.buckets.values()) == {Bucket.DEGENERATE}
        assert (found.rows, found.informative, found.denominators.tokens) == ((), 0, 0)

    def test_a_cut_is_bootstrapped_where_the_file_says_so(self, make_record: Make) -> None:
        cut = make_record([1, 1], reward=None, reason=StopReason.TURN_LIMIT, final_value=2.0, values=[0.5, 0.25])
        found = put(group(cut), algorithm="actor_critic", rules=RewardRules(gamma=0.5, cut=Bootstrap()))
        assert found.buckets == {cut.id: Bucket.TRAINED}
        assert found.rows[0].advantages.tolist() == [0.25 * 2.0 - 0.5, 0.5 * 2.0 - 0.25]


def test_whitening_gives_mean_0_and_deviation_1_over_trained_tokens(make_record: Make) -> None:
    members = [
        make_record([3, 1], reward=1.0, values=[0.1, 0.4]),
        make_record([1], reward=0.0, values=[0.3], member=1, group=1),
    ]
    found = put(*(group(item) for item in members), algorithm="ppo", options={"lam": 1.0})

    raw = np.array([0.9, 0.9, 0.9, 0.6, -0.3])
    expected = (raw - raw.mean()) / (np.sqrt(((raw - raw.mean()) ** 2).mean()) + 1e-8)
    values = np.concatenate([row.advantages for row in found.rows])
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)
    targets = [row.value_targets.tolist() for row in found.rows if row.value_targets is not None]
    assert targets == [pytest.approx([1.0, 1.0]), pytest.approx([0.0])], "targets are not whitened"


def test_the_critic_is_asked_before_each_turns_first_token(make_record: Make) -> None:
    found = put(group(make_record([2, 1], reward=1.0, values=[0.25, 0.5])), algorithm="actor_critic")

    row = found.rows[0]
    assert row.value_positions is not None
    assert row.old_values is not None
    assert row.value_weights is not None
    assert row.value_positions.tolist() == [2, 6]
    assert row.old_values.tolist() == [0.25, 0.5]
    assert row.value_weights.tolist() == [0.5, 0.5]


def test_tokens_that_two_tapes_share_are_trained_once(make_record: Make) -> None:
    """The second context keeps the first turn's tokens as its prefix; they belong to the tape that sampled them."""
    plain = make_record([2], reward=1.0)
    second = Span(
        origin=Origin.POLICY,
        turn=1,
        token_ids=as_ints([200, 201, 202]),
        logprobs=as_floats([-1.0, -1.0, -1.0]),
        policy_version=0,
        sampling=Sampling(),
    )
    note = Span(origin=Origin.ENVIRONMENT, turn=1, token_ids=as_ints([8]))
    forked = replace(
        plain,
        tapes=(*plain.tapes, Tape(parent=0, fork_at=4, spans=(note, second))),
        turns=(*plain.turns, Turn(index=1, tape=1, start=5, stop=8)),
    )

    found = put(group(forked, make_record([5], reward=0.0, member=1)), options={"average": "trajectory"})

    one, two = found.rows[:2]
    assert (one.tape, one.token_ids.tolist(), one.positions.tolist()) == (0, [1, 2, 3, 100, 101], [3, 4])
    assert (two.tape, two.token_ids.tolist()) == (1, [1, 2, 3, 100, 8, 200, 201, 202])
    assert two.positions.tolist() == [5, 6, 7]
    assert [*one.weights, *two.weights] == [1 / 10] * 5
    assert found.denominators.tokens == 10
    assert found.denominators.turns == 3


def spoken(record: Trajectory, *, cut: int | None = None) -> Trajectory:
    """The record with an answer in every turn; turn ``cut`` ends at its token limit."""
    return replace(
        record,
        turns=tuple(
            replace(turn, text="so", finish=Finish.LENGTH if turn.index == cut else Finish.STOP)
            for turn in record.turns
        ),
    )


def test_a_trajectory_that_the_algorithm_masks_is_held_back_and_stays_in_its_groups_statistics(
    make_record: Make,
) -> None:
    """Rewards 1, 0, .5: the second has a turn that was cut off. Deviation with n - 1 over all three."""
    members = [
        spoken(make_record([3], reward=1.0)),
        spoken(make_record([1, 1], reward=0.0, member=1), cut=0),
        spoken(make_record([2], reward=0.5, member=2)),
    ]
    found = put(group(*members), algorithm="simpletir", options={"eps": 0.0})

    assert [found.buckets[member.id] for member in members] == [Bucket.TRAINED, Bucket.HELD_BACK, Bucket.TRAINED]
    assert found.why == {members[1].id: "a turn of it is void"}
    assert [(row.trajectory, row.advantages.tolist()) for row in found.rows] == [
        (members[0].id, pytest.approx([1.0] * 3)),
        (members[2].id, pytest.approx([0.0] * 2)),
    ]
    assert [row.weights.tolist() for row in found.rows] == [pytest.approx([0.2] * 3), pytest.approx([0.2] * 2)]
    assert found.denominators.tokens == 5


def test_copies_of_a_group_are_counted_as_uses_of_its_trajectories(make_record: Make) -> None:
    """One informative group of three: it stands three times, in one row a trajectory."""
    groups = [
        group(*(make_record([1], reward=value, member=at, group=g, task=str(g)) for at, value in enumerate(rewards)))
        for g, rewards in enumerate([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    ]
    found = put(*groups, algorithm="dupo")

    assert found.copies == (0, 3, 0)
    assert found.times == {member.id: 3 for member in groups[1].members}
    assert [row.weights.tolist() for row in found.rows] == [[0.5], [0.5]]
    assert found.denominators.tokens == 6


@pytest.mark.parametrize(
    "algorithm",
    ["rloo", "reinforce_pp", "dr_grpo", "dapo", "gspo", "cispo", "maxrl", "dupo", "simpletir", "transitions"],
)
def test_a_member_without_a_reward_changes_nothing_for_the_others(make_record: Make, algorithm: str) -> None:
    sound = [spoken(make_record([2, 1], reward=value, member=at)) for at, value in ((0, 1.0), (2, 0.0), (3, 0.5))]
    lost = make_record([7], reward=None, member=1, reason=StopReason.VERIFIER_ERROR)

    alone, beside = put(group(*sound), algorithm=algorithm), put(group(sound[0], lost, *sound[1:]), algorithm=algorithm)

    assert beside.buckets[lost.id] is Bucket.INFRA_ERROR
    assert [row.trajectory for row in beside.rows] == [member.id for member in sound]
    for one, other in zip(alone.rows, beside.rows, strict=True):
        assert one.advantages.tolist() == other.advantages.tolist()
        assert one.weights.tolist() == other.weights.tolist()
