"""Whether a document holds what a method needs, and what in it was probably not meant."""

from collections.abc import Sequence

from kifu.algorithms import Algorithm, Plan
from kifu.credit import RefreshedPairs, StoredPairs
from kifu.credit.branching import EntropyBranching, TreeExpansion
from kifu.errors import UsageError, nearest
from kifu.training.inspection.token_accounts import Explanation, needs_reference
from kifu.training.inspection.trajectory_episodes import column
from kifu.training.inspection.trajectory_fields import Given, GivenTrajectory
from kifu.training.inspection.trajectory_file import paid_names


def check_needs(
    given: Given, taking_part: Sequence[GivenTrajectory], *, method: Algorithm, called: str, where: str
) -> None:
    """Refuse a document that lacks what the method cannot do without and its credit would not miss by itself.

    Args:
        given: the document.
        taking_part: its trajectories that have credit.
        method: with its options.
        called: its name.
        where: the document's name in messages.

    Raises:
        UsageError: naming trajectory, turn, token and field.
    """
    _check_checks(given, method.plan, called=called, where=where)
    if "calls_tool" in method.plan.presumed:
        _check_tools(taking_part, where)
    for item in taking_part:
        if method.plan.needs_value:
            _check_values(item, method.plan, where)
        if method.plan.verifiable:
            _check_success(item, where)
        if needs_reference(method.objective()):
            _check_reference(item, where)


def _check_checks(given: Given, plan: Plan, *, called: str, where: str) -> None:
    """A method that learns from what turns are paid is given turns that are."""
    if plan.turn_rewards is None:
        return
    wanted, known = plan.turn_rewards.component, paid_names(given)
    if wanted is not None and wanted not in ("reward", *known):
        raise UsageError(
            f"{where}: `options.component`: no turn is paid `{wanted}`; {nearest(wanted, ['reward', *known])}"
        )
    turns = (turn for group in given.groups for item in group.trajectories for turn in item.turns)
    if not known and not any("reward" in turn.model_fields_set for turn in turns):
        raise UsageError(
            f"{where}: no turn has `reward` or `rewards`, and `{called}` learns from checks of single turns; give "
            'every turn its check, e.g. "rewards": {"call_is_right": 1.0}'
        )


def _check_tools(taking_part: Sequence[GivenTrajectory], where: str) -> None:
    """Where turns that called a tool name it, one that says nothing called none or was forgotten."""
    turns = [(item, at, turn) for item in taking_part for at, turn in enumerate(item.turns)]
    if not any(turn.tool or turn.calls_tool for _, _, turn in turns):
        return
    for item, at, turn in turns:
        if turn.tool is None and turn.calls_tool is None:
            raise UsageError(
                f"{where}: trajectory {item.id}, turn {at}, `tool`: missing, and other turns name theirs; give the "
                'name, or "" where the turn called none, which the method treats otherwise'
            )


def _check_values(item: GivenTrajectory, plan: Plan, where: str) -> None:
    """All turns have V, or all tokens: numbers of the two kinds do not complete each other."""
    of_tokens = [column(turn.sampled, "value") is not None for turn in item.turns]
    if all(of_tokens) and plan.token_values != "unread":
        return
    for at, turn in enumerate(item.turns):
        if turn.value is None and not (plan.token_values == "needed" and of_tokens[at]):
            raise UsageError(
                f"{where}: trajectory {item.id}, turn {at}, `value`: missing; the method needs V before every turn"
            )


def _check_success(item: GivenTrajectory, where: str) -> None:
    """A method that is paid by verified success alone is told what the verifier found."""
    if "success" not in item.model_fields_set:
        raise UsageError(
            f"{where}: trajectory {item.id}, `success`: missing; the method pays verified success and nothing else. "
            "Give true or false, or null where the verifier could not tell"
        )


def _check_reference(item: GivenTrajectory, where: str) -> None:
    """A loss relative to a reference is given one wherever it is given the policy."""
    for at, turn in enumerate(item.turns):
        for number, token in enumerate(turn.tokens or ()):
            if token.logprob is not None and token.reference_logprob is None and not token.observation:
                raise UsageError(
                    f"{where}: trajectory {item.id}, turn {at}, token {number}, `reference_logprob`: missing; the loss "
                    "is relative to a frozen reference. Give it beside every `logprob`, or neither to see credit alone"
                )


def doubts(given: Given, found: Explanation, *, plan: Plan) -> list[str]:
    """What enters nothing, enters twice or is compared with nothing, and what to write instead."""
    trajectories = [item for group in given.groups for item in group.trajectories]
    return [
        *_paid_twice(trajectories),
        *_unpaid(given, plan),
        *_unpaired(given, found, plan),
        *_unbranched(trajectories, plan),
        *_presumed(trajectories, plan),
    ]


def _paid_twice(trajectories: Sequence[GivenTrajectory]) -> list[str]:
    return [
        f"trajectory {item.id}: the rewards of its turns and its own are both paid, {2 * item.reward:g} in all; "
        "leave one out if they are the same reward"
        for item in trajectories
        if item.reward and sum(turn.reward for turn in item.turns) == item.reward
    ]


def _unpaid(given: Given, plan: Plan) -> list[str]:
    """Reward components without a weight that the method does not read by itself."""
    read, names = plan.turn_rewards, paid_names(given)
    own = [] if read is None else names if read.component is None else [read.component]
    return [
        f"`rewards.{name}` of turns is paid to nobody: `components` gives it no weight, the method does not read it. "
        f'Write "components": {{"{name}": 1.0}} to pay it, 0 to leave it out on purpose'
        for name in names
        if name not in given.components and name not in own
    ]


def _unbranched(trajectories: Sequence[GivenTrajectory], plan: Plan) -> list[str]:
    """A method of branching rollouts is shown none that branched."""
    if not isinstance(plan.rollout, EntropyBranching | TreeExpansion):
        return []
    if any(item.branch.parent is not None or item.tree is not None for item in trajectories):
        return []
    return [
        "no trajectory has `branch`, so all are credited as if they had begun by themselves; write where one left "
        'another: "branch": {"parent": "ID", "turn": k}'
    ]


def _presumed(trajectories: Sequence[GivenTrajectory], plan: Plan) -> list[str]:
    """A fact that no turn gives and the method reads: all turns count as the usual kind."""
    given = {name for item in trajectories for turn in item.turns for name in turn.model_fields_set}
    several = any(len(item.turns) > 1 for item in trajectories)
    notes = []
    for name in plan.presumed:
        match name:
            case "calls_tool" if not given & {"calls_tool", "tool"}:
                notes.append("no turn has `calls_tool` or `tool`: every turn counts as one that called a tool")
            case "is_void" if "is_void" not in given:
                notes.append("no turn has `is_void`: none counts as void, so none is masked")
            case "segment" if several and "segment" not in given:
                notes.append("no turn has `segment`: all turns of a trajectory count as held by one context")
            case _:
                pass
    return notes


def _unpaired(given: Given, found: Explanation, plan: Plan) -> list[str]:
    """Groups in which an expert is compared with nothing, though the method learns from pairs."""
    match plan.data:
        case RefreshedPairs():
            needs = 'one with `branch` {{"parent": "{id}", "turn": k}} whose turn k has another `tool`'
        case StoredPairs():
            needs = "one that in a `state` of {id} takes another `action` with another `tool`"
        case _:
            return []
    notes = []
    for at, members in enumerate(found.groups):
        sides = {one.id: one.advantages_N for one in members if one.filtered is None and one.advantages_N is not None}
        if sides and all(bool((side_N >= 0).all()) for side_N in sides.values()):
            expert = next(iter(sides))
            notes.append(
                f"group {at}: trajectory {expert} stands in no pair, so it is imitated and compared with nothing; add "
                f"{needs.format(id=expert)}"
            )
    return notes
