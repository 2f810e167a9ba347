"""Shaping on records of real key_door rollouts: the sum telescopes, a true end has potential 0, a cut keeps its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kifu.credit import Doubles, Episode
from kifu.credit.reading import read_episode
from kifu.engines import build_engine
from kifu.records import RolloutKey, StopReason, Trajectory
from kifu.rollout import run_rollout
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.reading import load_experiment

RECIPE = Path(__file__).parents[2] / "recipes" / "key_door.toml"
ROLLOUTS = 64
CUT_AFTER = 3


def _records(prepared: Prepared) -> list[Trajectory]:
    """Rollouts of the untrained policy."""
    engine = build_engine("recurrent", prepared.engine_spec(prepared.stages[0], seed=1))
    tasks = prepared.task_source(0)

    async def act(index: int) -> Trajectory:
        key = RolloutKey(seed=0, step=0, group=index, member=0)
        return await run_rollout(prepared.setting, writer=engine.sampler, key=key, task=tasks.training(index))

    async def act_all() -> list[Trajectory]:
        return [await act(index) for index in range(ROLLOUTS)]

    return asyncio.run(act_all())


def _prepared(turns: int) -> Prepared:
    overrides = [f"environment.collector_limits.turns={turns}"]
    return prepare(load_experiment(RECIPE, profile="shaped", overrides=overrides))


@pytest.fixture(scope="module")
def ended() -> tuple[Prepared, list[Trajectory]]:
    """Every episode ends by the task, which allows 8 steps."""
    prepared = _prepared(12)
    return prepared, _records(prepared)


@pytest.fixture(scope="module")
def cut() -> tuple[Prepared, list[Trajectory]]:
    """The collector allows fewer steps than the task."""
    prepared = _prepared(CUT_AFTER)
    return prepared, _records(prepared)


def _potential(door: str, actions: Sequence[str]) -> float:
    """A quarter each for clue seen, right key held, door open, read off the actions."""
    key = next((action.removeprefix("pickup_") for action in actions if action.startswith("pickup_")), None)
    opened = any(action == f"open_{door}" for action in actions) and key == door
    return ("inspect" in actions) / 4 + (key == door) / 4 + opened / 4


def _added(record: Trajectory, prepared: Prepared) -> Doubles:
    shaped, plain = (read_episode(record, replace(prepared.rules, shaping=shaping)) for shaping in (True, False))
    assert isinstance(shaped, Episode)
    assert isinstance(plain, Episode)
    found: Doubles = shaped.rewards_K - plain.rewards_K
    return found


def _actions(record: Trajectory) -> list[str]:
    return [turn.action.executed[0].name for turn in record.turns]


def test_what_shaping_adds_to_an_ended_episode_sums_to_minus_the_first_potential(
    ended: tuple[Prepared, list[Trajectory]],
) -> None:
    """Sum gamma^t F_t = -Phi(s_0) = 0, for success, failure and the task's budget alike."""
    prepared, records = ended
    gamma = prepared.rules.gamma
    assert gamma == 0.99
    reasons = {record.outcome.reason for record in records}
    assert {StopReason.FAILURE, StopReason.TASK_BUDGET} <= reasons
    for record in records:
        added_K = _added(record, prepared)
        assert record.outcome.terminated
        assert np.sum(gamma ** np.arange(added_K.size) * added_K) == pytest.approx(0.0, abs=1e-12)
    assert max(np.abs(_added(record, prepared)).max() for record in records) > 0.2


def test_a_cut_keeps_the_potential_of_the_state_it_was_cut_in(cut: tuple[Prepared, list[Trajectory]]) -> None:
    """Sum gamma^t F_t = -Phi(s_0) + gamma^T Phi(s_T), with Phi(s_T) read off the actions."""
    prepared, records = cut
    gamma = prepared.rules.gamma
    truncated = [record for record in records if record.outcome.reason is StopReason.TURN_LIMIT]
    last = [_potential(record.task.family, _actions(record)) for record in truncated]
    assert len({*last}) >= 3
    for record, potential in zip(truncated, last, strict=True):
        assert len(record.turns) == CUT_AFTER
        assert record.final_potential == potential
        added_K = _added(record, prepared)
        assert np.sum(gamma ** np.arange(CUT_AFTER) * added_K) == pytest.approx(gamma**CUT_AFTER * potential, abs=1e-12)


def test_every_recorded_potential_is_that_of_the_state_before_the_turn(
    ended: tuple[Prepared, list[Trajectory]],
) -> None:
    """Read off the actions before it."""
    for record in ended[1]:
        actions = _actions(record)
        for turn in record.turns:
            assert turn.potential == _potential(record.task.family, actions[: turn.index])


def test_a_cut_bootstraps_from_the_critic_s_value_and_an_end_from_nothing(
    cut: tuple[Prepared, list[Trajectory]], ended: tuple[Prepared, list[Trajectory]]
) -> None:
    """V(h_T) stands in the record of a cut, and the episode's boundary is that value; an ended one has 0."""
    for prepared, records in (cut, ended):
        for record in records:
            episode = read_episode(record, prepared.rules)
            assert isinstance(episode, Episode)
            if record.outcome.truncated:
                assert record.final_value is not None
                assert episode.boundary == record.final_value != 0.0
            else:
                assert record.final_value is None
                assert episode.boundary == 0.0
