"""Recipes, and rollouts of their untrained or given policies."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.policy import Engine
from kifu.records import Group, RolloutKey
from kifu.rollout import run_rollout
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.reading import Loaded, load_experiment

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="session")
def recipe_file() -> Callable[..., Loaded]:
    """A recipe of the repository with overrides, as read."""

    def load(name: str, *overrides: str, profile: str | None = None) -> Loaded:
        return load_experiment(RECIPES / f"{name}.toml", profile=profile, overrides=overrides)

    return load


@pytest.fixture(scope="session")
def recipe(recipe_file: Callable[..., Loaded]) -> Callable[..., Prepared]:
    """A recipe of the repository with overrides, checked and frozen."""

    def make(name: str, *overrides: str, profile: str | None = None) -> Prepared:
        return prepare(recipe_file(name, *overrides, profile=profile))

    return make


@pytest.fixture(scope="session")
def collect() -> Callable[..., list[Group]]:
    """Groups of one, on consecutive training tasks."""

    def make(prepared: Prepared, engine: Engine, *, count: int, step: int = 0) -> list[Group]:
        tasks = prepared.task_source(0)

        async def act(index: int) -> Group:
            key, task = RolloutKey(seed=0, step=step, group=index, member=0), tasks.training(count * step + index)
            found = await run_rollout(prepared.setting, writer=engine.sampler, key=key, task=task)
            return Group(task=found.task, members=(found,))

        async def act_all() -> list[Group]:
            return list(await asyncio.gather(*(act(index) for index in range(count))))

        return asyncio.run(act_all())

    return make
