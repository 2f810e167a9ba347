"""Where rollouts branch, against the rules written out case by case and against counting."""

from collections.abc import Callable

import numpy as np
import pytest

from kifu.credit.branching import (
    DampedDraw,
    EntropyBranching,
    FixedStart,
    Fork,
    Path,
    PlainDraw,
    PreMonitored,
    RandomNodes,
    TopScore,
    TreeExpansion,
    branch_after_results,
    branch_probability,
    does_branch,
    draw_value,
    expand_tree,
    first_rollouts,
    initial_rollouts,
    node_score,
    segment_entropy,
)
from kifu.errors import ArgumentError


def path(name: str, *heads: float, parent: str | None = None, own: int = 0, mean: tuple[float, ...] = ()) -> Path:
    return Path(id=name, heads_K=heads, entropies_K=mean or heads, parent=parent, own=own)


def always(u: float) -> Callable[[int, int], float]:
    return lambda _, __: u


def test_the_probability_of_a_branch_is_as_printed() -> None:
    found = [branch_probability(rise) for rise in (1.5, -0.75, 3.0)]
    np.testing.assert_allclose(found, [0.8, 0.35, 1.0], atol=1e-12)


def test_a_draw_branches_as_printed() -> None:
    assert draw_value(0.7, 1.5, draw=PlainDraw(), weight=0.2) == pytest.approx(0.4)
    assert does_branch(0.7, 1.5, draw=PlainDraw(), weight=0.2)
    assert not does_branch(0.9, 1.5, draw=PlainDraw(), weight=0.2)


def test_draws_branch_as_often_as_the_probability_says() -> None:
    grid = (np.arange(10_000) + 0.5) / 10_000
    for rise in (-4.0, -1.0, 0.0, 0.7, 4.0):
        taken = float(np.mean([does_branch(float(u), rise, draw=PlainDraw(), weight=0.2) for u in grid]))
        assert taken == pytest.approx(branch_probability(rise), abs=2e-4)


def test_a_damped_draw_is_as_printed_and_harder_after_growth() -> None:
    value = draw_value(0.6, 0.5, draw=DampedDraw(), weight=0.2, grown=3)
    assert value == pytest.approx(0.595)
    assert does_branch(0.6, 0.5, draw=DampedDraw(), weight=0.2, grown=3)
    assert not does_branch(0.6, 0.5, draw=DampedDraw(), weight=0.2, grown=6)
    assert draw_value(0.9, 3.0, draw=DampedDraw(), weight=0.2, grown=25) == 0.0


def test_the_entropy_of_a_segment_is_as_printed() -> None:
    assert segment_entropy([[0.5, 0.5], [0.9, 0.1]], vocabulary=1000) == pytest.approx(0.147404, abs=5e-7)
    with pytest.raises(ArgumentError, match="at least 2 tokens"):
        segment_entropy([[1.0]], vocabulary=1)


def test_initial_rollouts_are_as_printed() -> None:
    found = [initial_rollouts(16, root=max(rise, 0.0), steps=max(-rise, 0.0)) for rise in (0.0, 1.0, -1.0, 4.0)]
    assert found == [9, 10, 7, 15]


def test_the_first_rollout_sets_the_number_of_whole_ones() -> None:
    plan = EntropyBranching(start=PreMonitored())
    uncertain_at_root = path("a", 1.0, 0.0, 0.0)

    assert first_rollouts(plan, uncertain_at_root, budget=16, vocabulary=3) > 9
    assert first_rollouts(plan, path("a", 0.0, 1.0, 1.0), budget=16, vocabulary=3) < 9
    assert first_rollouts(plan, None, budget=16, vocabulary=3) == 9
    assert first_rollouts(EntropyBranching(start=FixedStart(count=8)), None, budget=6, vocabulary=3) == 6


def test_the_entropy_is_taken_after_the_result_or_before_the_call() -> None:
    """Turn 2 is the uncertain one: after the second result, before the third call."""
    paths = [path("a", 0.0, 0.0, 50.0, 0.0)]

    def turns(plan: EntropyBranching) -> list[int]:
        ask = {
            turn: branch_after_results(plan, paths, turn=turn, room=9, vocabulary=10, uniform=always(0.9))
            for turn in range(1, 5)
        }
        return [turn for turn, found in ask.items() if found]

    assert turns(EntropyBranching(side="after_result")) == [2]
    assert turns(EntropyBranching(side="before_call")) == [3]


def test_before_the_first_call_nothing_has_risen() -> None:
    plan, paths = EntropyBranching(side="before_call"), [path("a", 9.0, 0.0)]
    for u, expected in ((0.5, [Fork("a", 1)]), (0.51, [])):
        assert branch_after_results(plan, paths, turn=1, room=4, vocabulary=10, uniform=always(u)) == expected


def test_branches_fill_the_room_in_the_order_of_the_paths() -> None:
    plan = EntropyBranching(beam=3)
    paths = [path("a", 1.0), path("b", 1.0, 1.0), path("c", 1.0, 1.0, 1.0)]

    found = branch_after_results(plan, paths, turn=1, room=3, vocabulary=10, uniform=always(0.0))

    assert found == [Fork("b", 1), Fork("b", 1), Fork("c", 1)]


def test_a_branch_branches_only_after_its_own_point() -> None:
    child = path("c", 1.0, 1.0, 1.0, parent="a", own=1)
    for turn, expected in ((1, []), (2, [Fork("c", 2)]), (3, [])):
        found = branch_after_results(EntropyBranching(), [child], turn=turn, room=3, vocabulary=10, uniform=always(0.0))
        assert found == expected


def test_scores_of_nodes_are_as_printed() -> None:
    assert node_score(0.9, branches=1) == pytest.approx(0.90)
    assert node_score(0.95, branches=3) == pytest.approx(0.85)
    assert node_score(0.9, branches=1) > node_score(0.95, branches=3)


def test_the_best_turns_that_something_followed_are_written_again() -> None:
    plan = TreeExpansion(chains=2, rounds=1, picks=3)
    paths = [path("a", 0.3, 0.9, 5.0), path("b", 0.4, 7.0)]

    found = expand_tree(plan, paths, number=0, room=9, uniform=always(0.0))

    assert found == [Fork("a", 1), Fork("b", 0), Fork("a", 0)]
    assert expand_tree(plan, paths, number=0, room=1, uniform=always(0.0)) == [Fork("a", 1)]
    assert plan.total == 5


def test_every_branch_at_a_node_lowers_its_score_and_its_siblings() -> None:
    """Three turns stand at one place: the chain's and those of two branches; each scores 0.95 - 0.1."""
    chain = path("a", 0.0, 0.95, 0.0)
    twins = [path(name, 0.0, 0.95, 0.0, parent="a", own=1) for name in ("b", "c")]
    rival = path("d", 0.86, 0.0)
    plan = TreeExpansion(chains=2, rounds=1, picks=1, choice=TopScore())

    assert expand_tree(plan, [chain, rival], number=0, room=1, uniform=always(0.0)) == [Fork("a", 1)]
    assert expand_tree(plan, [chain, rival, *twins], number=1, room=1, uniform=always(0.0)) == [Fork("d", 0)]


def test_random_nodes_are_drawn_in_every_tree_with_the_root_among_them() -> None:
    plan = TreeExpansion(chains=2, rounds=1, picks=2, choice=RandomNodes())
    paths = [path("a", 1.0, 1.0, 1.0), path("b", 1.0, 1.0), path("c", 1.0, 1.0, 1.0, 1.0, parent="a", own=1)]
    drawn = iter([0.0, 0.999, 0.0, 0.999])

    found = expand_tree(plan, paths, number=0, room=9, uniform=lambda *_: next(drawn))

    assert found == [Fork("a", 0), Fork("c", 3), Fork("b", 0), Fork("b", 1)]
    assert plan.total == 6


def test_random_nodes_are_equally_likely() -> None:
    """Root and turns 0 and 1 of a chain of three, whose last turn nothing follows."""
    plan = TreeExpansion(chains=1, rounds=1, picks=3000, choice=RandomNodes())

    def drawn(_: int, number: int) -> float:
        return (number + 0.5) / 3000

    found = expand_tree(plan, [path("a", 1.0, 1.0, 1.0)], number=0, room=3000, uniform=drawn)

    assert [found.count(Fork("a", turn)) for turn in range(4)] == [1000, 1000, 1000, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: EntropyBranching(beam=1),
        lambda: EntropyBranching(head=0),
        lambda: FixedStart(count=0),
        lambda: TreeExpansion(rounds=0),
    ],
)
def test_a_plan_that_cannot_branch_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError, match="at least"):
        make()
