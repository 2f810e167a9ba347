"""Trajectories of a document that left one another: what they share, and in which tree they stand."""

from collections.abc import Iterator, Mapping

from kifu.errors import UsageError, nearest
from kifu.training.inspection.trajectory_fields import GivenGroup, GivenToken, GivenTrajectory, GivenTurn

_NOT_SHARED = {"tokens", "hindsight_logprob"}
"""Fields of a turn that are compared token by token, or that depend on how the attempt ended."""


def check_branches(group: GivenGroup, where: str) -> None:
    """Refuse branches that cannot have grown so.

    Args:
        group: ids name one trajectory each.
        where: the group's name in messages.

    Raises:
        UsageError: a parent or a turn that is not there, a circle, two trees, or shared turns that disagree.
    """
    by_id = {item.id: item for item in group.trajectories}
    for item in group.trajectories:
        _check_parent(item, by_id, f"{where}, trajectory {item.id}")
    ordered, trees = _parents_first(group, where), dict[str, str | None]()
    for item in ordered:
        parent = item.branch.parent
        above = None if parent is None else trees[parent]
        if item.tree is not None and above not in (None, item.tree):
            raise UsageError(
                f"{where}, trajectory {item.id}, `tree`: found {item.tree!r}, and its parent {parent} stands in "
                f"{above!r}; a branch stands in the tree of its parent"
            )
        trees[item.id] = item.tree or above
    _check_shared(ordered, where)


def trees_of(group: GivenGroup) -> dict[str, str]:
    """By id the tree as written, or that of the trajectory it branched from, and so on to the root, whose id names it.

    Args:
        group: as `check_branches` accepts it.
    """
    trees: dict[str, str] = {}
    for item in _parents_first(group, ""):
        parent = item.branch.parent
        trees[item.id] = item.tree or (item.id if parent is None else trees[parent])
    return trees


def _check_parent(item: GivenTrajectory, by_id: Mapping[str, GivenTrajectory], told: str) -> None:
    parent, turn = item.branch.parent, item.branch.turn
    if parent is None:
        if turn:
            raise UsageError(
                f"{told}, `branch.turn`: found {turn}, and `branch.parent` is missing; name the trajectory it left, or "
                "leave `branch` out"
            )
        return
    if parent not in by_id or parent == item.id:
        others = [name for name in by_id if name != item.id]
        raise UsageError(
            f"{told}, `branch.parent`: no other trajectory `{parent}` in the group; {nearest(parent, others)}"
        )
    if turn > len(item.turns):
        raise UsageError(f"{told}, `branch.turn`: found {turn}, the trajectory has {len(item.turns)} turns")
    if turn >= (length := len(by_id[parent].turns)):
        raise UsageError(
            f"{told}, `branch.turn`: found {turn}, its parent {parent} has {length} turns, counted from 0; a branch "
            "leaves its parent before one of the parent's turns"
        )


def _parents_first(group: GivenGroup, where: str) -> list[GivenTrajectory]:
    by_id = {item.id: item for item in group.trajectories}
    found: dict[str, GivenTrajectory] = {}
    for item in group.trajectories:
        above: dict[str, GivenTrajectory] = {}
        name: str | None = item.id
        while name is not None and name not in found:
            if name in above:
                raise UsageError(
                    f"{where}, trajectory {item.id}, `branch.parent`: {' from '.join([*above, name])} is a circle; a "
                    "parent was there before its branches"
                )
            above[name] = by_id[name]
            name = by_id[name].branch.parent
        found.update(reversed(above.items()))
    return list(found.values())


def _check_shared(ordered: list[GivenTrajectory], where: str) -> None:
    """Every turn is one whoever writes it down: who wrote it and who shares it say the same."""
    owners: dict[str, list[str]] = {}
    for item in ordered:
        shared = [] if item.branch.parent is None else owners[item.branch.parent][: item.branch.turn]
        owners[item.id] = [*shared, *[item.id] * (len(item.turns) - len(shared))]
    shared_turns = {(owners[item.id][at], at) for item in ordered for at in range(item.branch.turn)}
    told: dict[tuple[str, int], dict[str, tuple[object, str]]] = {}
    for item in ordered:
        for at, turn in enumerate(item.turns):
            node = (owners[item.id][at], at)
            if node not in shared_turns:
                continue
            for field, value in _facts(turn):
                known, whose = told.setdefault(node, {}).setdefault(field, (value, item.id))
                if known != value:
                    raise UsageError(
                        f"{where}, trajectory {item.id}, turn {at}, {field}: found {value!r:.80}, and trajectory "
                        f"{whose}, which shares the turn, has {known!r:.80}; before `branch.turn` a branch repeats the "
                        "turns of its parent"
                    )


def _facts(turn: GivenTurn) -> Iterator[tuple[str, object]]:
    """What is given of a turn and does not depend on what came after it."""
    for name in GivenTurn.model_fields:
        if name not in _NOT_SHARED and (value := getattr(turn, name)) is not None:
            yield f"`{name}`", value
    if turn.tokens is None:
        return
    yield "number of `tokens`", len(turn.tokens)
    for number, token in enumerate(turn.tokens):
        for name in GivenToken.model_fields:
            if (value := getattr(token, name)) is not None:
                yield f"token {number}, `{name}`", value
