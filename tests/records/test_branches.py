"""What two records say they share is compared, and a shared token is told from others."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kifu.records import Branch, Event, RolloutKey, Span, Tape, TaskRef, Trajectory, as_floats, as_ints
from kifu.records.branches import branch_problems, occurrences, owner_of

Make = Callable[..., Trajectory]
STATE = Event(kind="state.kept", detail={"digest": "d1", "blob": None})


@pytest.fixture
def family(make: Make) -> list[Trajectory]:
    """Member 0; 1 and 2 left it at turn 1, 2 tokens shared and 1 of their own; 3 left nobody."""
    root = make(member=0)
    root = replace(root, turns=(root.turns[0], replace(root.turns[1], events=(STATE,))))
    branch = Branch(tree=root.id, parent=root.id, turn=1, chosen_by="test", restored_by="replay", digest="d1")
    children = [replace(root, key=replace(root.key, member=member), branch=branch) for member in (1, 2)]
    return [root, *children, make(member=3)]


def known(items: list[Trajectory]) -> dict[str, Trajectory]:
    return {item.id: item for item in items}


def test_honest_branches_have_no_problems(family: list[Trajectory]) -> None:
    assert [list(branch_problems(item, known(family))) for item in family] == [[]] * 4


def test_a_turns_owner_is_who_wrote_it(family: list[Trajectory]) -> None:
    root, child = family[:2]
    assert owner_of(child, 0, known(family)) is root
    assert owner_of(child, 1, known(family)) is child
    assert owner_of(child, 0, {}) is child


def test_sampled_tokens_are_counted_by_how_many_hold_them(family: list[Trajectory]) -> None:
    """Turn 0 has 2 sampled tokens in three members, turn 1 has 1 in each of them; member 3 has 3 of its own."""
    assert dict(occurrences(family, known(family))) == {3: 2, 1: 3 + 3}
    assert dict(occurrences(family[1:], known(family))) == {2: 2, 1: 2 + 3}
    assert [item.sampled_tokens for item in family] == [3, 1, 1, 3]


def test_tokens_before_the_branch_are_the_prefixs_cost(family: list[Trajectory]) -> None:
    assert [item.shared_tokens for item in family] == [0, 6, 6, 0]


def forged(child: Trajectory, **changed: object) -> Trajectory:
    assert child.branch is not None
    return replace(child, branch=replace(child.branch, **changed))  # type: ignore[arg-type]


def other_tape(child: Trajectory, at: int, span: Span) -> Trajectory:
    first = child.tapes[0]
    spans = tuple(span if index == at else item for index, item in enumerate(first.spans))
    return replace(child, tapes=(Tape(spans=spans), *child.tapes[1:]))


def test_what_a_forged_branch_says_is_found(family: list[Trajectory]) -> None:
    child = family[1]
    prompt, sampled = child.tapes[0].spans[:2]
    assert sampled.logprobs is not None
    first = child.turns[0]
    cases = {
        "branched from train/s7/t00000/g0000/m009/a0, of which there is no record": forged(
            child, parent=RolloutKey(seed=7, step=0, group=0, member=9).id
        ),
        "which has 2 turns": forged(child, turn=2),
        "in another": forged(child, tree="elsewhere"),
        "went on from state d9": forged(child, digest="d9"),
        "attempts another task": replace(child, task=TaskRef(id="task-4")),
        "tell it differently": replace(child, turns=(replace(first, rewards={"shaping": 9.0}), *child.turns[1:])),
        "the two records hold others": other_tape(child, 0, replace(prompt, token_ids=as_ints([1, 2, 4]))),
        "hold other logprobs": other_tape(child, 1, replace(sampled, logprobs=as_floats(np.array([-0.5, -0.125])))),
    }
    for what, altered in cases.items():
        found = list(branch_problems(altered, known(family)))
        assert len(found) == 1, (what, found)
        assert what in found[0]
