"""Which facts of turns a method says it reads, against what changes its credit."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from kifu.algorithms import ALGORITHMS, build_algorithm
from kifu.credit import TurnFacts
from kifu.testing.trials import Tabular, Trial, credited, make_groups

OTHERWISE: dict[str, tuple[int, dict[str, object]]] = {
    "calls_tool": (0, {"calls_tool": False}),
    "is_void": (0, {"is_void": True}),
    "segment": (-1, {"segment": 1}),
}
"""Which turn of every attempt is of another kind than the others, and how."""


def with_turn(groups: Sequence[Sequence[Trial]], at: int, facts: dict[str, object]) -> list[list[Trial]]:
    def turned(trial: Trial) -> Trial:
        plain = [replace(one, calls_tool=True, is_void=False, segment=0) for one in trial.episode.turns]
        plain[at] = replace(plain[at], **facts)  # type: ignore[arg-type]
        return replace(trial, episode=replace(trial.episode, turns=tuple[TurnFacts, ...](plain)))

    return [[turned(trial) for trial in group] for group in groups]


def plainly(value: object) -> object:
    """Arrays as lists, values as their fields, so that two of them can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plainly(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {item.name: plainly(getattr(value, item.name)) for item in fields(value)}  # type: ignore[arg-type]
    return value


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_method_says_every_presumed_fact_that_changes_its_credit(name: str) -> None:
    algorithm = build_algorithm(name, {"min_calls": 2} if name == "rft" else {})
    policy = Tabular.draw(0)
    groups = make_groups(0, policy=policy)
    usual = plainly(credited(with_turn(groups, 0, {}), algorithm))
    read = {
        fact
        for fact, (at, facts) in OTHERWISE.items()
        if plainly(credited(with_turn(groups, at, facts), algorithm)) != usual
    }

    assert read == set(algorithm.plan.presumed)
