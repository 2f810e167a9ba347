"""Which limit forbids the next turn."""

import pytest

from kifu.records import StopReason
from kifu.rollout import Limits

BUDGET, TURNS, TOKENS, OVERFLOW = (
    StopReason.TASK_BUDGET,
    StopReason.TURN_LIMIT,
    StopReason.TOKEN_LIMIT,
    StopReason.TOOL_RESULT_OVERFLOW,
)


@pytest.mark.parametrize(
    ("limits", "turns", "tokens", "after_result", "expected"),
    [
        (Limits(), 10**6, 10**6, True, None),
        (Limits(task_turns=3), 2, 0, True, None),
        (Limits(task_turns=3), 3, 0, True, BUDGET),
        (Limits(turns=3), 3, 0, True, TURNS),
        (Limits(task_turns=3, turns=3, tokens=5), 3, 9, True, BUDGET),
        (Limits(turns=3, tokens=5), 3, 9, True, TURNS),
        (Limits(tokens=5), 1, 4, True, None),
        (Limits(tokens=5), 1, 5, True, OVERFLOW),
        (Limits(tokens=5), 0, 5, False, TOKENS),
    ],
)
def test_the_tasks_limit_comes_before_the_collectors(
    limits: Limits, turns: int, tokens: int, after_result: bool, expected: StopReason | None
) -> None:
    found = limits.reached(turns=turns, tokens=tokens, after_result=after_result)

    assert (found and found[0]) == expected
