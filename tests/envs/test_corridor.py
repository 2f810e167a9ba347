"""The corridor against its published and its exact values."""

from fractions import Fraction

import numpy as np
import pytest

from kifu.envs import Task
from kifu.envs.finite import expected_reward, explore
from kifu.envs.suites.corridor import Corridor
from kifu.records import StopReason, ToolCall


def exits(limit: int) -> tuple[Fraction, Fraction, Fraction]:
    """Chances of leaving left, leaving right, being cut, for a fair coin; dynamic programming written out."""
    chance = {1: Fraction(0), 2: Fraction(1), 3: Fraction(0)}
    left = right = Fraction(0)
    for _ in range(limit):
        left, right = left + chance[1] / 2, right + chance[3] / 2
        chance = {1: chance[2] / 2, 2: (chance[1] + chance[3]) / 2, 3: chance[2] / 2}
    return left, right, sum(chance.values(), Fraction(0))


def test_a_fair_coin_with_twenty_steps_is_worth_1023_of_2048() -> None:
    assert exits(20) == (Fraction(1023, 2048), Fraction(1023, 2048), Fraction(1, 1024))
    world = explore(Corridor(), [Task(id="corridor")])
    assert len(world.nodes) == 5
    assert expected_reward(world, lambda _: (0.5, 0.5), horizon=20) == pytest.approx(1023 / 2048, abs=1e-15)


def test_one_thousand_episodes_with_seed_seven_give_0494() -> None:
    """One generator for all episodes, one draw per step taken, 0 is left, cut after 20 steps."""
    rng = np.random.default_rng(7)
    world, wins, draws = Corridor(), 0, 0
    for _ in range(1000):
        world.reset(Task(id="corridor"), 0)
        for _ in range(20):
            reply = world.step(ToolCall(name=("left", "right")[int(rng.integers(2))]))
            draws += 1
            if reply.stop:  # type: ignore[union-attr]
                break
        wins += bool(world.verify().success)
    assert (wins / 1000, draws) == (0.494, 4194)


def test_the_ends_stop_the_episode_with_reasons_the_task_owns() -> None:
    world = Corridor()
    world.reset(Task(id="corridor"), 0)
    assert world.left().stop is None
    assert world.left().stop is StopReason.FAILURE
    assert world.verify().reward == 0.0
    world.reset(Task(id="corridor"), 0)
    world.right()
    assert world.right().stop is StopReason.SUCCESS
    assert world.verify().reward == 1.0
