"""The continuing task: exact discounted values, segments, and the bonus that makes a loop."""

from itertools import islice

import numpy as np
import pytest

from kifu.envs import Reply, Task
from kifu.envs.segments import next_segment
from kifu.envs.suites.loop_room import (
    ACTIONS,
    ROOMS,
    SLIP,
    TARGET,
    LoopRoom,
    arrive,
    discounted_value,
    transition_tables,
)
from kifu.errors import ArgumentError
from kifu.records import ToolCall

GAMMA = 0.9
EMPTY_AT_TARGET = 2 * TARGET
LOADED_AT_DEPOT = 1
UNREACHABLE = (0, 2 * TARGET + 1)
"""Empty in the depot, loaded at the target."""


def always(action: str) -> np.ndarray:
    policy = np.zeros((2 * ROOMS, len(ACTIONS)))
    policy[:, ACTIONS.index(action)] = 1.0
    return policy


def walk(world: LoopRoom, name: str) -> Reply:
    return world.step(ToolCall(name=name))


def test_walking_forward_for_ever_has_the_value_of_a_geometric_sum() -> None:
    """One room takes q = E[gamma^steps] = gamma (1 - p) / (1 - gamma p); a delivery k rooms away pays q^k / gamma."""
    value_S = discounted_value(always("forward"), transition_tables()[1], gamma=GAMMA)
    q = GAMMA * (1 - SLIP) / (1 - GAMMA * SLIP)
    whole_round = q**8 / (GAMMA * (1 - q**8))
    assert value_S[EMPTY_AT_TARGET] == pytest.approx(whole_round, abs=1e-12)
    assert value_S[LOADED_AT_DEPOT] == pytest.approx(q**4 * (1 / GAMMA + whole_round), abs=1e-12)


def test_ringing_for_ever_is_worth_nothing_and_its_bonus_a_geometric_sum() -> None:
    _, delivered_AS, rang_AS = transition_tables()
    assert discounted_value(always("ring"), delivered_AS, gamma=GAMMA) == pytest.approx(np.zeros(2 * ROOMS))
    assert discounted_value(always("ring"), rang_AS, gamma=GAMMA) == pytest.approx(np.full(2 * ROOMS, 10.0))


def test_the_value_of_a_random_walk_agrees_with_the_environment_itself() -> None:
    """Discounted deliveries of 400 simulated segments of 120 steps, within five standard errors."""
    policy = np.full((2 * ROOMS, len(ACTIONS)), 1 / len(ACTIONS))
    value_S = discounted_value(policy, transition_tables()[1], gamma=GAMMA)
    rng, returns = np.random.default_rng(0), []
    for task in islice(LoopRoom.tasks("train", 0), 400):
        world = LoopRoom()
        world.reset(task, task.seed)
        world.restore({**world.snapshot(), "room": 2, "loaded": True})  # type: ignore[dict-item]
        gained = 0.0
        for step in range(120):
            reply = walk(world, ACTIONS[int(rng.integers(3))])
            gained += GAMMA**step * reply.rewards.get("delivered", 0.0)
        returns.append(gained)
    error = np.std(returns, ddof=1) / np.sqrt(len(returns))
    assert np.mean(returns) == pytest.approx(value_S[2 * 2 + 1], abs=5 * error)


def test_transition_rows_are_distributions() -> None:
    P_ASS, delivered_AS, _ = transition_tables()
    assert P_ASS.sum(axis=2) == pytest.approx(np.ones((len(ACTIONS), 2 * ROOMS)))
    assert delivered_AS.max() == pytest.approx(1 - SLIP)
    assert delivered_AS.sum() == pytest.approx(2 * (1 - SLIP))


def test_a_step_slips_at_the_declared_rate() -> None:
    world = LoopRoom()
    world.reset(Task(id="t"), 0)
    stayed = sum(walk(world, "forward").text.split("_")[0] == before for before in _rooms(world, 3000))
    assert stayed / 3000 == pytest.approx(SLIP, abs=5 * np.sqrt(SLIP * (1 - SLIP) / 3000))


def _rooms(world: LoopRoom, count: int) -> list[str]:
    """Rooms before each of ``count`` forward steps, from a copy of the world."""
    copy = LoopRoom()
    copy.restore(world.snapshot())
    before = []
    for _ in range(count):
        before.append(copy.state_key().split("_")[0])
        walk(copy, "forward")
    return before


def test_a_segment_goes_on_exactly_where_the_last_was_cut() -> None:
    task = next(iter(LoopRoom.tasks("train", 5)))
    straight, cut = LoopRoom(), LoopRoom()
    straight.reset(task, 5)
    cut.reset(task, 5)
    whole = [walk(straight, "forward").text for _ in range(40)]
    first = [walk(cut, "forward").text for _ in range(15)]
    following = next_segment(task, cut.snapshot())
    carried = LoopRoom()
    opening = carried.reset(following, 999)
    assert opening == first[-1]
    assert following.data["segment"] == 1
    assert first + [walk(carried, "forward").text for _ in range(25)] == whole


def test_a_cut_pays_nothing_and_keeps_the_potential() -> None:
    world = LoopRoom()
    world.restore({"room": 3, "loaded": True, "stream": "s", "step": 0})
    assert world.verify().reward == 0.0
    assert world.verify().success is None
    assert world.potential() == pytest.approx(7 / 8)


def test_the_potential_grows_by_an_eighth_per_room_of_the_round() -> None:
    world, found = LoopRoom(), []
    room, loaded = TARGET, False
    for _ in range(ROOMS):
        world.restore({"room": room, "loaded": loaded, "stream": "s", "step": 0})
        found.append(world.potential())
        room, loaded, _ = arrive(room, loaded, "forward")
    assert found == [step / 8 for step in range(8)]


def best_actions(reward_AS: np.ndarray) -> list[str]:
    """Value iteration, written out; for the reachable states."""
    P_ASS = transition_tables()[0]
    value_S = np.zeros(2 * ROOMS)
    for _ in range(600):
        value_S = (reward_AS + GAMMA * P_ASS @ value_S).max(axis=0)
    best_S = (reward_AS + GAMMA * P_ASS @ value_S).argmax(axis=0)
    return [ACTIONS[at] for state, at in enumerate(best_S) if state not in UNREACHABLE]


def test_a_bonus_per_bell_makes_ringing_for_ever_the_best_policy() -> None:
    """Plain: always on the move. With 0.1 per bell: after a delivery the bell is rung and nothing is carried again."""
    _, delivered_AS, rang_AS = transition_tables()
    plain, naive = best_actions(delivered_AS), best_actions(delivered_AS + 0.1 * rang_AS)
    assert "ring" not in plain
    assert naive[EMPTY_AT_TARGET - 1] == "ring"


def test_potential_shaping_keeps_the_best_policy() -> None:
    P_ASS, delivered_AS, _ = transition_tables()
    potential_S = np.zeros(2 * ROOMS)
    for state in range(2 * ROOMS):
        world = LoopRoom()
        world.restore({"room": state // 2, "loaded": bool(state % 2), "stream": "s", "step": 0})
        potential_S[state] = world.potential()
    shaped_AS = delivered_AS + GAMMA * P_ASS @ potential_S - potential_S
    assert best_actions(shaped_AS) == best_actions(delivered_AS)


def test_an_endless_sum_needs_a_discount() -> None:
    with pytest.raises(ArgumentError, match="gamma"):
        discounted_value(always("ring"), transition_tables()[1], gamma=1.0)
