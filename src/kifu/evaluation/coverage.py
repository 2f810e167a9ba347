"""How much of what an evaluated policy met and did stands in the records it learned from."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kifu.records import Trajectory, Turn

_State: TypeAlias = tuple[str, bytes | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Shares of an evaluation's turns; None where it has none."""

    turns: int
    """Evaluated turns."""
    states: float | None
    """Share whose state stands in the records."""
    actions: float | None
    """Share whose action was recorded in that state."""
    distinct_states: float | None
    """Share of the different states met that stands in the records."""


def coverage(data: Iterable[Trajectory], evaluated: Iterable[Trajectory]) -> Coverage:
    """Compare the turns of an evaluation with records.

    Two turns are in the same state when their state keys are equal or, where a turn has none, when the contexts before
    them are equal token by token. Two actions are the same when the executed calls are; a turn without a call counts by
    its text. An action outside the data says that the policy left it: nothing recorded tells what it is worth.

    Args:
        data: what was learned from.
        evaluated: what the policy did afterwards.
    """
    known = {(state, action) for record in data for state, action in _steps(record)}
    states = {state for state, _ in known}
    met = [step for record in evaluated for step in _steps(record)]
    different = {state for state, _ in met}
    return Coverage(
        turns=len(met),
        states=_share(sum(state in states for state, _ in met), len(met)),
        actions=_share(sum(step in known for step in met), len(met)),
        distinct_states=_share(len(different & states), len(different)),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _steps(record: Trajectory) -> Iterator[tuple[_State, str]]:
    for turn in record.turns:
        state: _State = (
            ("key", turn.state_key)
            if turn.state_key is not None
            else ("context", record.tape_ids(turn.tape)[: turn.start].tobytes())
        )
        yield state, _action(turn)


def _action(turn: Turn) -> str:
    calls = [[call.name, dict(call.arguments)] for call in turn.action.executed]
    return json.dumps(calls, sort_keys=True) if calls else turn.text
