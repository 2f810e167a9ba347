"""Values of foreign code: what can be meant becomes plain, everything else is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kifu.errors import RecordError
from kifu.records import Verdict
from kifu.records.plain import as_count, as_flag, as_items, as_real, as_text, as_whole


@pytest.mark.parametrize(
    ("read", "given", "plain"),
    [
        (as_real, np.float32(0.5), 0.5),
        (as_real, 3, 3.0),
        (as_real, True, 1.0),
        (as_flag, np.True_, True),
        (as_whole, np.int64(-7), -7),
        (as_count, 0, 0),
        (as_text, "caf\u00e9", "caf\u00e9"),
        (as_items, {"a": 1}, [("a", 1)]),
    ],
)
def test_a_value_with_one_meaning_becomes_plain(read: Callable[..., object], given: object, plain: object) -> None:
    found = read(given, "it")
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize(
    ("read", "given"),
    [
        (as_real, "1"),
        (as_real, float("nan")),
        (as_real, 10**400),
        (as_real, None),
        (as_flag, 1),
        (as_flag, "yes"),
        (as_whole, 2**31),
        (as_whole, True),
        (as_count, -1),
        (as_text, b"a"),
        (as_text, "\ud800"),
        (as_items, [("a", 1)]),
        (as_items, {3: 1}),
        (as_items, {"\ud800": 1}),
    ],
)
def test_a_value_without_a_meaning_is_refused_by_name_and_can_be_printed(
    read: Callable[..., object], given: object
) -> None:
    with pytest.raises(RecordError, match=r"^it") as refused:
        read(given, "it")
    str(refused.value).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"success": "yes"},
        {"score": "high"},
        {"world_state_checks": {"open": "no"}},
        {"safety_checks": ["a"]},
        {"invalid_actions": -3},
        {"resource_usage": {"seconds": float("nan")}},
        {"verifier": None},
        {"evidence": 3},
    ],
)
def test_a_verdict_that_no_record_can_hold_is_refused_where_it_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=next(iter(fields))):
        Verdict(**{"success": True, **fields})
