"""Verifiers of the world: a state compared with the goal, or named checks of it."""

import hashlib
import json
from collections.abc import Collection, Mapping

from kifu.records import Json, Verdict


def named_checks(checks: Mapping[str, bool], *, verifier: str, safety: Mapping[str, bool] | None = None) -> Verdict:
    """Success is every check of the world holding; safety checks are reported beside it.

    Args:
        checks: name to whether it holds; at least one.
        verifier: id and version.
        safety: rules kept, e.g. ``no_mail_sent``.
    """
    if not checks:
        raise ValueError(f"{verifier}: no check was made, so nothing can be said")
    return Verdict(
        success=all(checks.values()),
        world_state_checks=checks,
        safety_checks=safety or {},
        verifier=verifier,
        evidence=_digest(dict(checks)),
    )


def goal_state(actual: Mapping[str, Json], goal: Mapping[str, Json], *, ignore: Collection[str] = ()) -> Verdict:
    """A database equals its goal: one check per table of either.

    Args:
        actual: the state as it is; a table per key.
        goal: the state as it should be.
        ignore: paths that may differ, e.g. ``orders.17.updated_at``; a path covers everything below it.
    """
    checks = {}
    for table in sorted({*actual, *goal}):
        here = {table: actual[table]} if table in actual else {}
        there = {table: goal[table]} if table in goal else {}
        checks[table] = not differences(here, there, ignore=ignore)
    return Verdict(
        success=all(checks.values()),
        world_state_checks=checks,
        verifier="goal_state/1",
        evidence=_digest(dict(actual)),
    )


def differences(actual: Json, goal: Json, *, ignore: Collection[str] = ()) -> tuple[str, ...]:
    """Where a state differs from its goal, as ``path: found ..., expected ...``, in order of the paths.

    Numbers are equal by value (1 and 1.0), booleans only to booleans, lists by position.

    >>> differences({"cart": {"milk": 2}}, {"cart": {"milk": 3}})
    ('cart.milk: found 2, expected 3',)
    """
    return tuple(_walk(actual, goal, ("", frozenset(ignore))))


_ABSENT = object()


def _walk(actual: object, goal: object, place: tuple[str, frozenset[str]]) -> list[str]:
    path, ignore = place
    if path in ignore:
        return []
    if isinstance(actual, dict) and isinstance(goal, dict):
        children = [(key, actual.get(key, _ABSENT), goal.get(key, _ABSENT)) for key in sorted({*actual, *goal})]
    elif isinstance(actual, list) and isinstance(goal, list):
        longest = max(len(actual), len(goal))
        pad = [_ABSENT] * longest
        rows = zip(range(longest), actual + pad, goal + pad, strict=False)
        children = [(str(index), here, there) for index, here, there in rows]
    else:
        same = actual == goal and isinstance(actual, bool) == isinstance(goal, bool)
        return [] if same else [f"{path or 'state'}: found {_show(actual)}, expected {_show(goal)}"]
    return [
        line
        for key, here, there in children
        for line in _walk(here, there, (f"{path}.{key}" if path else str(key), ignore))
    ]


def _show(value: object) -> str:
    return "nothing" if value is _ABSENT else repr(value)


def _digest(value: Json) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
