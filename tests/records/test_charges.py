"""What turns cost, and a plan whose costs are not those of its records."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kifu.errors import RecordError
from kifu.records import (
    Action,
    Charge,
    Cost,
    PlanLine,
    PlanRow,
    Run,
    StopReason,
    ToolCall,
    Trajectory,
    check_plan,
    constrained_reward,
    content_digest,
    cost_by_turn,
    limits_exceeded,
)

Make = Callable[..., Trajectory]
LOOK = ToolCall(name="look")


@pytest.fixture
def record(make: Make) -> Trajectory:
    """The example record with other times and calls, so that each cost is another number."""
    found = make()
    called = Action(sampled=(LOOK, LOOK, LOOK), executed=(LOOK, LOOK, LOOK))
    turns = [replace(turn, seconds=0.25 * (turn.index + 1), action=Action()) for turn in found.turns]
    return replace(found, turns=(replace(turns[0], action=called), *turns[1:]))


def test_a_turn_costs_its_sampled_tokens_itself_its_calls_and_its_seconds(record: Trajectory) -> None:
    # two sampled tokens on the first tape in the first turn, one on the second tape in the second
    assert {cost.value: cost_by_turn(record, cost) for cost in Cost} == {
        "tokens": (2.0, 1.0),
        "turns": (1.0, 1.0),
        "calls": (3.0, 0.0),
        "seconds": (0.25, 0.5),
    }


@pytest.mark.parametrize(("limit", "over", "reward"), [(0.74, True, 0.0), (0.75, False, 0.75), (0.76, False, 0.75)])
def test_a_limit_is_kept_up_to_itself(record: Trajectory, limit: float, over: bool, reward: float) -> None:
    charge = Charge(cost=Cost.SECONDS, limit=limit)
    assert limits_exceeded(record, [charge]) == ((Cost.SECONDS,) if over else ())
    assert constrained_reward(record, [charge]) == reward


def test_a_punishment_is_not_softened_by_a_limit(record: Trajectory) -> None:
    assert record.verdict is not None
    failed = replace(record, verdict=replace(record.verdict, score=-0.5))
    assert constrained_reward(failed, [Charge(cost=Cost.TURNS, limit=1)]) == -0.5


def test_what_nobody_judged_stays_without_a_reward(record: Trajectory) -> None:
    unjudged = replace(record, verdict=None, outcome=replace(record.outcome, reason=StopReason.TURN_LIMIT))
    assert constrained_reward(unjudged, [Charge(cost=Cost.TURNS, limit=1)]) is None


@pytest.mark.parametrize("fields", [{}, {"weight": 1.0, "limit": 1.0}, {"weight": -1.0}, {"limit": float("nan")}])
def test_a_charge_is_a_weight_or_a_limit(fields: dict[str, float]) -> None:
    with pytest.raises(RecordError, match="cost `tokens`"):
        Charge(cost=Cost.TOKENS, **fields)


CHARGES = (Charge(cost=Cost.CALLS, weight=0.125), Charge(cost=Cost.TOKENS, limit=2))


def line(record: Trajectory, **changed: object) -> PlanLine:
    fields: dict[str, object] = {
        "trajectory": record.id,
        "digest": content_digest(record),
        "reward": 0.0,
        "runs": (Run(tape=0, start=3, stop=5, advantage=0.5, weight=0.25),),
        "costs": {"calls": (3.0, 0.0), "tokens": (2.0, 1.0)},
        "exceeded": ("tokens",),
    }
    row = PlanRow(**{**fields, **changed})  # type: ignore[arg-type]
    return PlanLine(step=0, version=0, micro_batches=((record.id,),), rows=(row,), charges=CHARGES)


def whats(record: Trajectory, **changed: object) -> list[str]:
    problems, _ = check_plan([line(record, **changed)], {record.id: record})
    return [item.what for item in problems if "bucket" not in item.what]


def test_a_plan_with_the_costs_of_its_records_is_sound_and_is_read_back(record: Trajectory) -> None:
    assert whats(record) == []
    assert PlanLine.from_json(line(record).to_json()) == line(record)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"costs": {"calls": (2.0, 0.0), "tokens": (2.0, 1.0)}}, "charged for calls (2.0, 0.0), the record has (3.0, "),
        ({"costs": {"tokens": (2.0, 1.0)}}, "charged for calls None, the record has (3.0, 0.0)"),
        ({"exceeded": ()}, "counted as over the limits of [], the record is over those of ['tokens']"),
        ({"reward": 0.75}, "trained on reward 0.75, the record has 0.0"),
    ],
)
def test_a_plan_with_other_costs_is_named(record: Trajectory, changed: dict[str, object], says: str) -> None:
    (what,) = whats(record, **changed)
    assert says in what
