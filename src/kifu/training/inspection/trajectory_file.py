"""Trajectories that a user writes down instead of records: one JSON document, checked field by field.

Axes: ``K`` turns, ``N`` sampled tokens of one turn.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kifu.credit import (
    Bootstrap,
    BranchPoint,
    CutTreatment,
    Doubles,
    Episode,
    Exclude,
    Terminal,
    TurnFacts,
    shaping_rewards,
)
from kifu.errors import ArgumentError, UsageError, found_expected, nearest
from kifu.records import Outcome, StopReason

Logprob: TypeAlias = Annotated[float, Field(le=0, ge=-500)]
"""Nats. Below -500 nobody samples, and a ratio of two such numbers is no number."""
Amount: TypeAlias = Annotated[float, Field(ge=-1e9, le=1e9)]
"""Rewards, values and the like. Their squares and sums stay finite, and nothing sensible is larger."""
LARGEST_FILE = 64 << 20
"""Bytes."""


class Part(BaseModel):
    """Base of every level of the document: no unknown fields, no text for numbers, only finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class GivenToken(Part):
    """One token of a turn."""

    logprob: Logprob | None = None
    """Nats, under the weights being trained."""
    behaviour_logprob: Logprob | None = None
    """Nats, as recorded when sampling."""
    reference_logprob: Logprob | None = None
    """Nats, under a frozen reference."""
    entropy: Annotated[float, Field(ge=0)] | None = None
    """Nats."""
    value: Amount | None = None
    """V before the token."""
    observation: bool = False
    """Whether somebody else than the policy wrote it; it is never trained."""


class GivenBranch(Part):
    """Where a trajectory left another one."""

    parent: str | None = None
    turn: Annotated[int, Field(ge=0)] = 0


class GivenTurn(Part):
    """One turn."""

    state: str | None = None
    next_state: str | None = None
    reward: Amount = 0.0
    """Paid in this turn, apart from the trajectory's own reward."""
    rewards: dict[str, Amount] = {}
    """Components by name; they are paid with the weights in ``components`` and methods may read them."""
    value: Amount | None = None
    potential: Amount | None = None
    entropy: float | None = None
    gold_logprob: Logprob | None = None
    hindsight_logprob: Logprob | None = None
    """Nats, mean over the turn's tokens, given the history before the turn and how the episode ended."""
    segment: Annotated[int, Field(ge=0)] = 0
    """Turns that one context held share the number."""
    duration: Annotated[float, Field(gt=0)] = 1.0
    tool: str | None = None
    """Names of the executed calls; empty for a turn without one."""
    action: str | None = None
    """What was executed, arguments included: equal texts mean equal actions."""
    calls_tool: bool | None = None
    """None: what ``tool`` says, and True where it says nothing."""
    is_void: bool = False
    tokens: list[GivenToken] | None = None
    """None: nothing is known of them, and the turn stands for one token."""

    @property
    def sampled(self) -> list[GivenToken]:
        """Tokens the policy wrote."""
        return [GivenToken()] if self.tokens is None else [token for token in self.tokens if not token.observation]


class GivenTrajectory(Part):
    """One trajectory."""

    id: Annotated[str, Field(min_length=1)]
    task: str | None = None
    reward: Amount | None = None
    """The verdict's reward, paid once, in the last turn. None: the verifier could not tell."""
    success: bool | None = None
    outcome: str | None = None
    """A stop reason; None counts as an end by the task."""
    tree: str | None = None
    branch: GivenBranch = GivenBranch()
    final_value: Amount | None = None
    final_potential: Amount | None = None
    final_gold_logprob: Logprob | None = None
    model_score: Amount | None = None
    """What a learned reward model says of it."""
    policy_version: Annotated[int, Field(ge=0)] | None = None
    turns: Annotated[list[GivenTurn], Field(min_length=1)]


class GivenGroup(Part):
    """Attempts at one task."""

    task: str = ""
    trajectories: Annotated[list[GivenTrajectory], Field(min_length=1)]


class Given(Part):
    """The document."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    components: dict[str, Amount] = {}
    """Weight of each reward component; one that is not named is not paid."""
    shaping: bool = False
    on_truncation: Literal["exclude", "terminal", "bootstrap"] = "bootstrap"
    """What a trajectory that the collector cut is worth; without ``final_value`` it is excluded."""
    groups: Annotated[list[GivenGroup], Field(min_length=1)]
    options: dict[str, Any] = {}
    """Of the method."""


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
        document = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_without_repetition)
    except RecursionError as broken:
        raise UsageError(f"{path}: nested too deeply. Expected one object with `groups`.") from broken
    except ValueError as broken:  # not JSON, not UTF-8, or an integer of too many digits
        raise UsageError(f"{path}: not JSON: {broken}. Expected one object with `groups`.") from broken
    return document, check_given(document, where=str(path))


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has `{next(name for name in names if names.count(name) > 1)}` twice")
    return found


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
    is_needed = any(field in model.model_fields and model.model_fields[field].is_required() for model in _LEVELS)
    return "correct it" if is_needed else "correct it, or leave it out where it is not known"


def _place(loc: tuple[int | str, ...], document: dict[str, Any]) -> tuple[str, str]:
    """Group, trajectory, turn, token and path of the field that an error is in, and the field's own name."""
    node: Any = document
    words: list[str] = []
    path: list[str] = []
    for part in loc:
        if isinstance(part, int):
            node = node[part] if isinstance(node, list) and part < len(node) else None
            known = node.get("id") if isinstance(node, dict) else None
            level = path[-1]
            name = known if level == "trajectories" and isinstance(known, str) and known else part
            words.append(f"{_ONE_OF.get(level, level)} {name}")
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
    ids = [item.id for item in group.trajectories]
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{where}, trajectory {twice}, `id`: found twice; ids name one trajectory of the group")
    by_id = {item.id: item for item in group.trajectories}
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
        _check_branch(item, by_id, told)
        for at, turn in enumerate(item.turns):
            if not turn.sampled:
                raise UsageError(
                    f"{told}, turn {at}, `tokens`: found none the policy wrote; a turn holds at least one token that "
                    "is no observation"
                )


def _check_branch(item: GivenTrajectory, by_id: Mapping[str, GivenTrajectory], told: str) -> None:
    parent = item.branch.parent
    if parent is None:
        return
    if parent not in by_id or parent == item.id:
        others = [name for name in by_id if name != item.id]
        raise UsageError(
            f"{told}, `branch.parent`: no other trajectory `{parent}` in the group; {nearest(parent, others)}"
        )
    for name, length in ((item.id, len(item.turns)), (parent, len(by_id[parent].turns))):
        if item.branch.turn > length:
            whose = "the trajectory" if name == item.id else f"its parent {parent}"
            raise UsageError(f"{told}, `branch.turn`: found {item.branch.turn}, {whose} has {length} turns")
    if item.tree is not None and by_id[parent].tree not in (None, item.tree):
        raise UsageError(
            f"{told}, `tree`: found {item.tree!r}, and its parent {parent} stands in {by_id[parent].tree!r}; a branch "
            "stands in the tree of its parent"
        )
    _check_circle(item, by_id, told)


def _check_circle(item: GivenTrajectory, by_id: Mapping[str, GivenTrajectory], told: str) -> None:
    seen = [item.id]
    while (parent := by_id[seen[-1]].branch.parent) in by_id:
        assert parent is not None, "no trajectory is called None"
        if parent in seen:
            raise UsageError(
                f"{told}, `branch.parent`: {' from '.join([*seen, parent])} is a circle; a parent was there before its "
                "branches"
            )
        seen.append(parent)


def _tree(item: GivenTrajectory, given: Given) -> str:
    """Its tree as written, or that of the trajectory it branched from, and so on to the root, whose id is its name."""
    group = next(group for group in given.groups if any(one is item for one in group.trajectories))
    by_id = {one.id: one for one in group.trajectories}
    while item.tree is None and item.branch.parent is not None:
        item = by_id[item.branch.parent]
    return item.tree or item.id


def cut_treatment(given: Given) -> CutTreatment:
    """What the document says about trajectories that the collector cut."""
    treatments: dict[str, CutTreatment] = {"exclude": Exclude(), "terminal": Terminal(), "bootstrap": Bootstrap()}
    return treatments[given.on_truncation]


def episode_of(item: GivenTrajectory, given: Given, *, needs_reward: bool) -> Episode | str:
    """The numbers credit works on, or why the trajectory takes no part.

    Args:
        item: one trajectory.
        given: the document it stands in.
        needs_reward: False for methods that look at no reward.
    """
    outcome = Outcome(reason=StopReason(item.outcome or StopReason.SUCCESS))
    if outcome.infra_error:
        return f"infrastructure error ({item.outcome}): it says nothing about the policy"
    cut = outcome.truncated and given.on_truncation != "terminal"
    if cut and given.on_truncation == "exclude":
        return f"cut by the collector ({item.outcome}) and excluded"
    if cut and item.final_value is None:
        return f"cut by the collector ({item.outcome}) without `final_value`, so it is excluded"
    if item.reward is None and needs_reward and not cut:
        return "no reward: the verifier could not tell"
    durations_K = [turn.duration for turn in item.turns]
    rewards_K = np.array([_paid(turn, given) for turn in item.turns])
    rewards_K[-1] += item.reward or 0.0
    if given.shaping:
        rewards_K = rewards_K + _shaping(item, given, durations_K, terminated=not cut)
    values = [turn.value for turn in item.turns]
    known = [value for value in values if value is not None]
    return Episode(
        rewards_K=rewards_K,
        terminated=not cut,
        values_K=np.array(known) if len(known) == len(values) else None,
        final_value=item.final_value if cut else None,
        durations_K=np.array(durations_K),
        id=item.id,
        outcome=item.reward,
        success=item.success,
        turns=tuple(_facts(item, at) for at in range(len(item.turns))),
        tree=_tree(item, given),
        branch=None if item.branch.parent is None else BranchPoint(parent=item.branch.parent, turn=item.branch.turn),
        model_score=item.model_score,
        final_gold_logprob=item.final_gold_logprob,
    )


def _paid(turn: GivenTurn, given: Given) -> float:
    return turn.reward + sum(weight * turn.rewards.get(name, 0.0) for name, weight in given.components.items())


def _shaping(item: GivenTrajectory, given: Given, durations_K: list[float], *, terminated: bool) -> Doubles:
    known = [turn.potential for turn in item.turns if turn.potential is not None]
    if len(known) != len(item.turns):
        at = next(at for at, turn in enumerate(item.turns) if turn.potential is None)
        raise ArgumentError(f"trajectory {item.id}, turn {at}: shaping needs `potential`, which is not given")
    if not terminated and item.final_potential is None:
        raise ArgumentError(
            f"trajectory {item.id}: it was cut, and shaping needs `final_potential`, which is not given; a cut must "
            "not zero it"
        )
    return shaping_rewards(
        known,
        gamma=given.gamma,
        terminated=terminated,
        final_potential=item.final_potential,
        durations_K=durations_K,
    )


def _facts(item: GivenTrajectory, at: int) -> TurnFacts:
    turn = item.turns[at]
    after = item.turns[at + 1].state if at + 1 < len(item.turns) else None
    entropies_N = column(turn.sampled, "entropy")
    entropy = turn.entropy
    if entropy is None and entropies_N is not None:
        entropy = float(entropies_N.mean())
    return TurnFacts(
        num_tokens=len(turn.sampled),
        state=turn.state,
        next_state=after if turn.next_state is None else turn.next_state,
        entropy=entropy,
        gold_logprob=turn.gold_logprob,
        hindsight_logprob=turn.hindsight_logprob,
        segment=turn.segment,
        rewards={"reward": turn.reward, **turn.rewards},
        tool=turn.tool,
        action=turn.action,
        calls_tool=turn.tool != "" if turn.calls_tool is None else turn.calls_tool,
        is_void=turn.is_void,
        logprobs_N=column(turn.sampled, "behaviour_logprob"),
        reference_logprobs_N=column(turn.sampled, "reference_logprob"),
        entropies_N=entropies_N,
        values_N=column(turn.sampled, "value"),
    )


def column(tokens: Sequence[GivenToken], field: str) -> Doubles | None:
    """``[N]`` one field of every token; None when a token lacks it."""
    found = [getattr(token, field) for token in tokens]
    return None if any(value is None for value in found) else np.array(found, dtype=np.float64)
