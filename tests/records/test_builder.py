"""Tapes built while a rollout runs hold exactly what was written."""

import numpy as np
import pytest

from kifu.errors import RecordError
from kifu.records import Origin, Sampling, Support, TapeBuilder, Written, as_floats, as_ints

NAN = float("nan")


def written(builder: TapeBuilder) -> list[list[tuple[str, int, list[int]]]]:
    return [
        [(span.origin.value, span.turn, span.token_ids.tolist()) for span in tape.spans] for tape in builder.build()
    ]


def test_a_generation_is_split_where_nobody_chose() -> None:
    builder = TapeBuilder()
    builder.append(Origin.PROMPT, [1, 2], turn=0)
    two = Support.of([10, 20])
    place = builder.append_generation(
        as_ints([9, 10, 11, 12, 13]),
        sampled=np.array([False, True, True, False, True]),
        logprobs=as_floats([NAN, -0.5, -0.25, NAN, -1.0]),
        policy_version=4,
        sampling=Sampling(temperature=0.7),
        support=(Support.of([9]), two, None, Support.of([12]), None),
        turn=0,
    )
    assert place == Written(tape=0, start=2, stop=7)
    assert written(builder) == [
        [
            ("prompt", 0, [1, 2]),
            ("controller", 0, [9]),
            ("policy", 0, [10, 11]),
            ("controller", 0, [12]),
            ("policy", 0, [13]),
        ]
    ]
    first, last = (span for span in builder.build()[0].spans if span.origin is Origin.POLICY)
    assert first.logprobs is not None
    assert first.logprobs.tolist() == [-0.5, -0.25]
    assert first.support == (two, None)
    assert last.support is None
    assert (last.policy_version, last.sampling) == (4, Sampling(temperature=0.7))


def test_neighbours_of_one_origin_and_turn_become_one_span() -> None:
    builder = TapeBuilder()
    for origin, ids, turn in [
        (Origin.TEMPLATE, [1], 0),
        (Origin.TEMPLATE, [], 0),
        (Origin.TEMPLATE, [2], 0),
        (Origin.TEMPLATE, [3], 1),
    ]:
        builder.append(origin, ids, turn=turn)
    assert written(builder) == [[("template", 0, [1, 2]), ("template", 1, [3])]]


def test_a_fork_shares_the_prefix_and_goes_its_own_way() -> None:
    first = TapeBuilder()
    first.append(Origin.PROMPT, [1, 2, 3, 4], turn=0)
    second = first.fork(2)
    first.append(Origin.ENVIRONMENT, [5], turn=0)
    second.append(Origin.CONTROLLER, [9], turn=1)
    third = second.fork(3)
    third.append(Origin.ENVIRONMENT, [8], turn=2)
    assert [builder.ids.tolist() for builder in (first, second, third)] == [[1, 2, 3, 4, 5], [1, 2, 9], [1, 2, 9, 8]]
    assert [(tape.parent, tape.fork_at) for tape in third.build()] == [(None, 0), (0, 2), (1, 3)]
    assert [builder.index for builder in (first, second, third)] == [0, 1, 2]
    assert written(first) == written(third)


def test_ids_handed_out_are_read_only_and_never_change() -> None:
    builder = TapeBuilder()
    expected: list[int] = []
    views = []
    for turn in range(40):
        builder.append(Origin.ENVIRONMENT, range(turn, turn + 30), turn=turn)
        expected += range(turn, turn + 30)
        views.append((len(expected), builder.ids))
        assert builder.position == len(expected)
    for length, view in views:
        assert view.tolist() == expected[:length]
        assert not view.flags.writeable


def test_a_fork_cannot_start_behind_the_end() -> None:
    builder = TapeBuilder()
    builder.append(Origin.PROMPT, [1], turn=0)
    with pytest.raises(RecordError, match="holds 1 tokens; it cannot be forked at 2"):
        builder.fork(2)


def test_policy_tokens_cannot_come_without_their_distribution() -> None:
    with pytest.raises(RecordError, match="use append_generation"):
        TapeBuilder().append(Origin.POLICY, [1], turn=0)


def test_lengths_must_agree() -> None:
    with pytest.raises(RecordError, match="turn 3: 2 ids, 1 flags, 2 logprobs, no supports"):
        TapeBuilder().append_generation(
            as_ints([1, 2]),
            sampled=np.array([True]),
            logprobs=as_floats([-1, -1]),
            policy_version=0,
            sampling=Sampling(),
            turn=3,
        )


def test_an_empty_generation_writes_nothing() -> None:
    builder = TapeBuilder()
    place = builder.append_generation(
        as_ints([]),
        sampled=np.zeros(0, np.bool_),
        logprobs=as_floats([]),
        policy_version=0,
        sampling=Sampling(),
        turn=0,
    )
    assert (place.start, place.stop, written(builder)) == (0, 0, [[]])
