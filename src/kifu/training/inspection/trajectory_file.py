"""Trajectories that a user writes down instead of records: one JSON document, checked field by field."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from kifu.errors import UsageError, found_expected, nearest
from kifu.records import StopReason
from kifu.training.inspection.trajectory_branches import check_branches
from kifu.training.inspection.trajectory_fields import (
    Given,
    GivenBranch,
    GivenGroup,
    GivenToken,
    GivenTrajectory,
    GivenTurn,
    Part,
)

LARGEST_FILE = 64 << 20
"""Bytes."""


def read_given(path: Path) -> tuple[dict[str, Any], Given]:
    """The document as it stands in the file, and checked.

    Raises:
        UsageError: no regular file, not a JSON document, or a field that cannot be meant.
        OSError: the file cannot be read.
    """
    if not path.is_file():
        found = "no such file" if not path.exists() else "a folder" if path.is_dir() else "not a regular file"
        hint = "; of a run, `--run RUN --step N` shows a step" if path.is_dir() else ""
        raise UsageError(f"{path}: {found}; expected a JSON document, as docs/credit.md shows it{hint}")
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise UsageError(
            f"{path}: {size:,} bytes, at most {LARGEST_FILE:,} are read; split the groups over several files"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = json.loads(text, object_pairs_hook=_without_repetition)
    except RecursionError as broken:
        raise UsageError(f"{path}: nested too deeply. Expected one object with `groups`.") from broken
    except ValueError as broken:  # not JSON, not UTF-8, or an integer of too many digits
        raise UsageError(f"{path}: not JSON: {broken}. Expected one object with `groups`.") from broken
    if _HALF_PAIR.search(text):
        _check_texts(document, where=str(path))
    return document, check_given(document, where=str(path))


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has `{twice}` twice")
    return found


_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of an escaped pair; only where there is one can a text be none."""


def _check_texts(document: object, *, where: str) -> None:
    """Refuse half of a surrogate pair, which is no character and no file can hold."""
    nodes: list[tuple[tuple[int | str, ...], object]] = [((), document)]
    while nodes:
        loc, node = nodes.pop()
        if isinstance(node, dict):
            nodes += [((*loc, name), name) for name in node if not _is_text(name)]
            nodes += [((*loc, name), item) for name, item in node.items()]
        elif isinstance(node, list):
            nodes += [((*loc, at), item) for at, item in enumerate(node)]
        elif isinstance(node, str) and not _is_text(node):
            place, _ = _place(loc, document)
            told = f"{where}: {place}: found {node!a}, half of a pair of surrogates; expected whole characters"
            raise UsageError(told.encode("utf-8", "backslashreplace").decode())


def _is_text(found: str) -> bool:
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_given(document: object, *, where: str) -> Given:
    """Check a parsed document.

    Args:
        document: a JSON tree.
        where: its name in messages.

    Raises:
        UsageError: a field that cannot be meant, with its trajectory, turn and name.
    """
    if not isinstance(document, dict):
        found = "a list" if isinstance(document, list) else repr(document)
        raise UsageError(f"{where}: found {found}, expected one object with `groups`")
    try:
        given = Given.model_validate(document)
    except ValidationError as problem:
        _explain(problem, document, where)
    for at, group in enumerate(given.groups):
        _check_group(group, f"{where}: group {at}")
    known = paid_names(given)
    for name in given.components:
        if name not in known:
            advice = nearest(name, known) if known else "turns are paid by name in `rewards`, and no turn has them."
            raise UsageError(f"{where}: `components.{name}`: no turn is paid `{name}`; {advice}")
    return given


def paid_names(given: Given) -> list[str]:
    """Every reward component that some turn is paid."""
    turns = (turn for group in given.groups for item in group.trajectories for turn in item.turns)
    return sorted({name for turn in turns for name in turn.rewards})


def _explain(problem: ValidationError, document: dict[str, Any], where: str) -> NoReturn:
    lines = []
    for error in problem.errors(include_url=False):
        place, field = _place(error["loc"], document)
        told = f"{where}: {place}"
        match error["type"]:
            case "extra_forbidden":
                lines.append(f"{told}: unknown field; {nearest(field, _known(error['loc']))}")
            case "missing":
                lines.append(f"{told}: missing; it must be given")
            case _:
                lines.append(f"{told}: {found_expected(error)}; {_advice(field)}")
    raise UsageError("\n".join(lines)) from problem


def _advice(field: str) -> str:
    if field.endswith("logprob"):
        return "a log-probability in nats is finite and at most 0"
    if field == "gamma":
        return "a discount lies in [0, 1]"
    is_needed = not field or any(
        field in model.model_fields and model.model_fields[field].is_required() for model in _LEVELS
    )
    return "correct it" if is_needed else "correct it, or leave it out where it is not known"


def _place(loc: tuple[int | str, ...], document: object) -> tuple[str, str]:
    """Group, trajectory, turn, token and path of the field that an error is in, and the field's own name."""
    node: Any = document
    words: list[str] = []
    path: list[str] = []
    for part in loc:
        if isinstance(part, int):
            node = node[part] if isinstance(node, list) and part < len(node) else None
            known = node.get("id") if isinstance(node, dict) else None
            level = path[-1] if path else ""
            name = known if level == "trajectories" and isinstance(known, str) and known else part
            if path and level not in _ONE_OF:
                words.append(f"`{'.'.join(path)}`")
            words.append(f"{_ONE_OF.get(level, 'item')} {name}")
            path = []
        else:
            path.append(part)
            node = node.get(part) if isinstance(node, dict) else None
    return ", ".join([*words, *([f"`{'.'.join(path)}`"] if path else [])]), path[-1] if path else ""


_ONE_OF = {"groups": "group", "trajectories": "trajectory", "turns": "turn", "tokens": "token"}
_PARTS: dict[str, type[Part]] = {
    "groups": GivenGroup,
    "trajectories": GivenTrajectory,
    "turns": GivenTurn,
    "tokens": GivenToken,
    "branch": GivenBranch,
}
_LEVELS: tuple[type[Part], ...] = (Given, *_PARTS.values())


def _known(loc: tuple[int | str, ...]) -> list[str]:
    levels = [part for part in loc[:-1] if isinstance(part, str)]
    return list((_PARTS[levels[-1]] if levels else Given).model_fields)


def _check_group(group: GivenGroup, where: str) -> None:
    twice, number = Counter(item.id for item in group.trajectories).most_common(1)[0]
    if number > 1:
        raise UsageError(f"{where}, trajectory {twice}, `id`: found twice; ids name one trajectory of the group")
    for item in group.trajectories:
        told = f"{where}, trajectory {item.id}"
        if item.task is not None and item.task != group.task:
            raise UsageError(
                f"{told}, `task`: found {item.task!r} in a group of {group.task!r}; one group is attempts at one task"
            )
        if item.outcome is not None and item.outcome not in set(StopReason):
            raise UsageError(
                f"{told}, `outcome`: no stop reason `{item.outcome}`; {nearest(item.outcome, list(StopReason))}"
            )
        for at, turn in enumerate(item.turns):
            after = item.turns[at + 1].state if at + 1 < len(item.turns) else None
            for field, what in _contradictions(turn, after):
                raise UsageError(f"{told}, turn {at}, `{field}`: {what}")
    check_branches(group, where)


def _contradictions(turn: GivenTurn, after: str | None) -> Iterator[tuple[str, str]]:
    """Fields of a turn that cannot all be meant, and why; ``after`` is the state of the next turn."""
    if not turn.sampled:
        yield "tokens", "found none the policy wrote; a turn holds at least one token that is no observation"
    if "reward" in turn.rewards:
        yield "rewards.reward", "the name is taken by the turn's own `reward`; choose another, or write it there"
    if turn.tool is not None and turn.calls_tool not in (None, turn.tool != ""):
        says = "calls none" if turn.tool == "" else f"calls {turn.tool!r}"
        yield "calls_tool", f"found {str(turn.calls_tool).lower()}, and its `tool` {says}; leave one of the two out"
    if None not in (turn.next_state, after) and turn.next_state != after:
        what = f"found {turn.next_state!r:.80}, and the next turn's `state` is {after!r:.80}"
        yield "next_state", f"{what}; leave one of the two out"
