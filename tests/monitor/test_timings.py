"""Timings on clocks that tell a known time."""

import threading
import time

import pytest

from kifu.monitor import Stage, Stopwatch, Timings


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_seconds_are_counted_by_stage_and_shares_add_up_to_one() -> None:
    """3 s training, 1 s tools, 4 s generation: shares 3/8, 1/8, 4/8."""
    wall, cpu = _Clock(), _Clock()
    timings = Timings(wall=wall, cpu=cpu)

    with timings.exclusive(Stage.TRAINING):
        wall.now += 3.0
        cpu.now += 5.0
    with timings.overlapping(Stage.TOOLS):
        wall.now += 1.0
        cpu.now += 7.0
    timings.add(Stage.GENERATION, wall_s=4.0, cpu_s=2.0)

    assert timings.wall_s()[Stage.TRAINING] == 3.0
    assert timings.cpu_s() == {**dict.fromkeys(Stage, 0.0), Stage.TRAINING: 5.0, Stage.GENERATION: 2.0}
    assert timings.share() == {
        Stage.GENERATION: 0.5,
        Stage.TOOLS: 0.125,
        Stage.ENVIRONMENT: 0.0,
        Stage.WAITING: 0.0,
        Stage.TRAINING: 0.375,
    }
    assert timings.metrics()["time/tools_s"] == 1.0


def test_a_block_that_raises_is_counted_too() -> None:
    """The time is spent whether or not the block succeeds."""
    wall = _Clock()
    timings = Timings(wall=wall, cpu=wall)

    def fail() -> None:
        with timings.exclusive(Stage.ENVIRONMENT):
            wall.now += 2.0
            raise ValueError("tool")

    with pytest.raises(ValueError, match="tool"):
        fail()

    assert timings.wall_s()[Stage.ENVIRONMENT] == 2.0


def test_nothing_counted_gives_zero_shares_and_reset_forgets() -> None:
    """No division by zero."""
    timings = Timings()
    timings.add(Stage.TOOLS, wall_s=1.0)
    timings.reset()

    assert set(timings.share().values()) == {0.0}


def test_threads_do_not_lose_seconds() -> None:
    """Four threads, two thousand halves each."""
    timings = Timings()

    def work() -> None:
        for _ in range(2000):
            timings.add(Stage.TOOLS, wall_s=0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert timings.wall_s()[Stage.TOOLS] == 4000.0


def test_a_sleep_costs_wall_time_but_no_cpu_time() -> None:
    """The two clocks are not confused."""
    watch = Stopwatch()
    time.sleep(0.05)

    assert watch.seconds >= 0.05
    assert watch.cpu_seconds < 0.04
