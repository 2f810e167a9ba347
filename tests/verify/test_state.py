"""Verifiers of the world, against states compared by hand."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.verify import differences, goal_state, named_checks

GOAL: dict[str, Any] = {
    "orders": {"17": {"status": "cancelled", "total": 30, "updated_at": "t9"}, "18": {"status": "open"}},
    "mails": [],
}


def changed(table: str, key: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    state = copy.deepcopy(GOAL)
    state[table][key].update(fields)
    return state


def test_a_world_in_the_goal_state_passes_whatever_was_said() -> None:
    verdict = goal_state(copy.deepcopy(GOAL), GOAL)
    assert verdict.success is True
    assert dict(verdict.world_state_checks) == {"orders": True, "mails": True}


def test_an_unchanged_world_fails_and_the_table_is_named() -> None:
    verdict = goal_state(changed("orders", "17", status="open"), GOAL)
    assert verdict.success is False
    assert dict(verdict.world_state_checks) == {"orders": False, "mails": True}


def test_a_side_effect_in_another_table_fails() -> None:
    state = {**copy.deepcopy(GOAL), "mails": [{"to": "x"}], "log": []}
    verdict = goal_state(state, GOAL)
    assert dict(verdict.world_state_checks) == {"orders": True, "mails": False, "log": False}


def test_an_ignored_path_may_differ_and_its_neighbours_may_not() -> None:
    state = changed("orders", "17", updated_at="t1")
    assert goal_state(state, GOAL, ignore=["orders.17.updated_at"]).success is True
    assert goal_state(state, GOAL, ignore=["orders.18"]).success is False


def test_differences_name_paths_and_both_values() -> None:
    found = differences({"a": [1, {"b": True}], "c": 1}, {"a": [1, {"b": 1}, 5], "d": None})
    assert found == (
        "a.1.b: found True, expected 1",
        "a.2: found nothing, expected 5",
        "c: found 1, expected nothing",
        "d: found nothing, expected None",
    )


def test_numbers_are_equal_by_value() -> None:
    assert differences({"x": 1}, {"x": 1.0}) == ()
    assert differences(3, 4) == ("state: found 3, expected 4",)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_a_state_never_differs_from_its_copy(state: Any) -> None:  # noqa: ANN401
    assert differences(state, copy.deepcopy(state)) == ()


def test_named_checks_succeed_only_together() -> None:
    assert named_checks({"door": True, "light": True}, verifier="room/1").success is True
    assert named_checks({"door": True, "light": False}, verifier="room/1").success is False
    unsafe = named_checks({"door": True}, verifier="room/1", safety={"no_mail_sent": False})
    assert unsafe.success is True
    assert dict(unsafe.safety_checks) == {"no_mail_sent": False}
    with pytest.raises(ValueError, match="no check was made"):
        named_checks({}, verifier="room/1")
