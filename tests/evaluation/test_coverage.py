"""Coverage against counts by hand."""

from collections.abc import Sequence

import pytest

from kifu.evaluation import Coverage, coverage
from kifu.records import (
    Action,
    EnvironmentRef,
    Origin,
    Outcome,
    Provenance,
    RolloutKey,
    Span,
    StopReason,
    Tape,
    TaskRef,
    ToolCall,
    Trajectory,
    Turn,
    as_ints,
)


def record(*turns: tuple[str | None, str], ids: Sequence[int] = (1, 2, 3, 4)) -> Trajectory:
    """Turns as (state key, tool); turn k stands at position k + 1 of the tape."""
    made = []
    for at, (key, tool) in enumerate(turns):
        calls = (ToolCall(name=tool),) if tool else ()
        action = Action(sampled=calls, executed=calls)
        made.append(Turn(index=at, start=at + 1, stop=at + 2, text="words", action=action, state_key=key))
    return Trajectory(
        key=RolloutKey(seed=0, step=0, group=0, member=0),
        task=TaskRef(id="t"),
        environment=EnvironmentRef(id="e", version="1", seed=0),
        provenance=Provenance(),
        tapes=(Tape(spans=(Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints(ids)),)),),
        turns=tuple(made),
        outcome=Outcome(reason=StopReason.SUCCESS),
    )


def test_states_and_actions_are_counted_by_turn() -> None:
    data = [record(("a", "go"), ("b", "stop"))]
    met = [record(("a", "go"), ("a", "stop"), ("c", "go")), record(("b", "stop"))]

    assert coverage(data, met) == Coverage(turns=4, states=3 / 4, actions=2 / 4, distinct_states=2 / 3)


def test_without_keys_a_state_is_the_context_before_the_turn() -> None:
    data = [record((None, "go"), (None, "go"), ids=(1, 2, 3))]
    met = [record((None, "go"), (None, "go"), ids=(1, 9, 3))]

    assert coverage(data, met) == Coverage(turns=2, states=1 / 2, actions=1 / 2, distinct_states=1 / 2)


def test_a_key_is_never_a_context() -> None:
    assert coverage([record(("a", "go"))], [record((None, "go"))]).states == 0.0


def test_an_answer_in_words_is_an_action() -> None:
    assert coverage([record(("a", ""))], [record(("a", "")), record(("a", "go"))]).actions == 0.5


@pytest.mark.parametrize("met", [[], [record()]])
def test_nothing_met_has_no_share(met: list[Trajectory]) -> None:
    assert coverage([record(("a", "go"))], met) == Coverage(turns=0, states=None, actions=None, distinct_states=None)
