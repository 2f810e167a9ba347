"""What a method makes of trajectories: of a file that a user wrote, or of a recorded step."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from kifu.algorithms import ALGORITHMS, Algorithm, build_algorithm, options_of
from kifu.credit import Episode
from kifu.credit.reading import RewardRules, trained_origin
from kifu.errors import StorageError, UsageError
from kifu.records import Group, Purpose, Span, Trajectory
from kifu.records.ledger import Bucket
from kifu.records.plan import PlanLine, read_plan
from kifu.records.reader import RunReader
from kifu.training.collection.supply import read_stored
from kifu.training.experiment.stages import Stage
from kifu.training.inspection.opened_run import OpenedRun, opened
from kifu.training.inspection.token_accounts import Explained, Explanation, Known, explain
from kifu.training.inspection.trajectory_branches import trees_of
from kifu.training.inspection.trajectory_episodes import cut_treatment, episode_of
from kifu.training.inspection.trajectory_fields import Given, GivenGroup, GivenToken, GivenTrajectory
from kifu.training.inspection.trajectory_file import read_given
from kifu.training.inspection.trajectory_needs import check_needs, doubts
from kifu.training.update.assemble import assemble, credited_as, trained_turns, usable_members
from kifu.training.update.borrowed import Borrowed, Scored
from kifu.training.update.plan import runs_of_row
from kifu.training.update.planned_step import PlannedStep, as_planned, as_refreshed
from kifu.training.update.scorers import Scorers
from kifu.training.update.turn_feedback import paid_by_signals

Document = dict[str, Any]
_COLUMNS = ("logprob", "behaviour_logprob", "reference_logprob", "entropy")


def explain_file(path: Path, *, algorithm: str) -> Document:
    """Credit the trajectories of a file, and evaluate the loss where it gives log-probabilities.

    Args:
        path: a JSON document; docs/credit.md lists its fields.
        algorithm: a name in `kifu.algorithms.ALGORITHMS`.

    Returns:
        The document with ``advantage``, ``weight``, ``ratio``, ``clipped`` and ``loss`` at every token, ``advantage``
        at every turn whose sampled tokens share it, and the totals.

    Raises:
        UsageError: a field that cannot be meant, or one that the method needs and is absent.
    """
    document, given = read_given(path)
    with _placed(path):
        return _explained(path, document, given=given, algorithm=algorithm)


@contextmanager
def _placed(where: Path) -> Iterator[None]:
    """Begin what is refused with the file or the run it stands in."""
    try:
        yield
    except UsageError as error:
        told = str(error)
        raise type(error)(told if told.startswith(str(where)) else f"{where}: {told}") from error


def _explained(path: Path, document: Document, *, given: Given, algorithm: str) -> Document:
    method = build_algorithm(algorithm, given.options)
    rules = RewardRules(gamma=given.gamma, components=given.components, shaping=given.shaping, cut=cut_treatment(given))
    needs_reward = not method.plan.demonstrations
    known = [_group_given(group, given, needs_reward=needs_reward) for group in given.groups]
    taking_part = [
        item
        for group, items in zip(given.groups, known, strict=True)
        for item, seen in zip(group.trajectories, items, strict=True)
        if isinstance(seen.episode, Episode)
    ]
    check_needs(given, taking_part, method=method, called=algorithm, where=str(path))
    asked = given.options.get("whiten") is True
    found = explain(known, algorithm=method, rules=rules, whiten=asked if method.plan.needs_value else None)
    notes = doubts(given, found, plan=method.plan)
    if "gamma" not in document and any(len(item.turns) > 1 for group in given.groups for item in group.trajectories):
        notes.append("no `gamma` is given: 1 is taken, so that a reward counts alike however late it comes")
    if method.plan.whiten and method.plan.needs_value and not asked:
        notes.append("advantages are raw; training normalizes them over the update, as `options.whiten` does here")
    return _annotated(document, found, head={"algorithm": algorithm, "settings": options_of(method)}, notes=notes)


def explain_step(
    root: Path, step: int, *, algorithm: str | None = None, options: Mapping[str, Any] | None = None
) -> Document:
    """The same for a recorded step: its records are the trajectories, and the policy is the one that sampled them.

    Args:
        root: a run folder; another process may be writing it.
        step: of the run.
        algorithm: another method than the run's; None takes that of the step.
        options: of ``algorithm``.

    Raises:
        StorageError: no run there, or no record of such a step.
        ExperimentError: the experiment of the folder cannot be rebuilt here.
    """
    with opened(root) as run:
        line = next((line for line in read_plan(run.folder.root) if line.step == step), None)
        own, stages = _groups(run, step), run.prepared.stages
        stage = next((stage for stage in stages if step < stage.first + stage.steps), stages[-1])
        planned = None if line is None else _planned(run, line, stage=stage, own=own)
        groups = own if planned is None or (own and algorithm is not None) else planned.groups
        if not groups:
            raise StorageError(f"{run.folder.root}: no record of step {step}; `kifu show` lists what there is")
        method = stage.algorithm if algorithm is None else build_algorithm(algorithm, options)
        version = _oldest(groups) if line is None else line.version
        max_age, rules = stage.update.max_age, stage.rules
        paid = {} if algorithm is None else paid_by_signals(stage, groups, model_of=Scorers(run).process_model)
    lent = PlannedStep(groups=(), borrowed=Borrowed(), scored=Scored()) if planned is None else planned
    if paid:  # another method may train attempts that the plan holds no row of
        lent = replace(lent, scored=replace(lent.scored, paid=paid))
    plain = method.plan.untempered
    known = [_known_group(group, rules=rules, oldest=version - max_age, lent=lent, plain=plain) for group in groups]
    with _placed(root):
        found = explain(known, algorithm=method, rules=rules, seed=version)
    name = next((name for name, cls in ALGORITHMS.items() if type(method) is cls), type(method).__name__.lower())
    head = {"algorithm": name, "settings": options_of(method), "run": str(root), "step": step}
    document: Document = {"gamma": rules.gamma, "groups": [_group_tree(group) for group in groups]}
    notes = []
    if any(told.ratios_N is not None for members in found.groups for told in members):
        notes.append(
            "the ratios are those before the first optimizer step of the update: the policy is the one that sampled"
        )
    if algorithm is None and line is not None and planned is not None:
        is_planned = _is_planned(line, planned, algorithm=method, rules=rules, max_age=max_age)
        notes.append(f"the run's plan {'holds these numbers' if is_planned else 'holds other numbers; audit the run'}")
    return _annotated(document, found, head=head, notes=notes)


def _planned(run: OpenedRun, line: PlanLine, *, stage: Stage, own: Sequence[Group]) -> PlannedStep:
    root = run.folder.root
    if stage.stored is None or not stage.refreshes or not line.rows:
        return as_planned(root, line, own)
    stored = read_stored(stage.stored, run.prepared, root=root, seed=run.seed)
    return as_refreshed(stage, stored, RunReader(run.folder.root).trajectories(), step=line.step)


def _group_given(group: GivenGroup, given: Given, *, needs_reward: bool) -> list[Known]:
    trees = trees_of(group)
    return [_known_given(item, given, tree=trees[item.id], needs_reward=needs_reward) for item in group.trajectories]


def _known_given(item: GivenTrajectory, given: Given, *, tree: str, needs_reward: bool) -> Known:
    tokens = [token for turn in item.turns for token in turn.sampled]
    places = [
        at
        for turn in item.turns
        for at, token in enumerate([GivenToken()] if turn.tokens is None else turn.tokens)
        if not token.observation
    ]
    return Known(
        id=item.id,
        episode=episode_of(item, given, tree=tree, needs_reward=needs_reward),
        turns_N=np.array([at for at, turn in enumerate(item.turns) for _ in turn.sampled], dtype=np.int64),
        columns={name: [getattr(token, name) for token in tokens] for name in _COLUMNS},
        tokens_N=np.array(places, dtype=np.int64),
    )


def _groups(run: OpenedRun, step: int) -> list[Group]:
    members = [
        item
        for item in RunReader(run.folder.root).trajectories()
        if item.key.step == step and item.key.purpose is not Purpose.EVALUATION
    ]
    members.sort(key=lambda item: item.key)
    return [
        Group(task=found[0].task, members=tuple(found))
        for found in (list(items) for _, items in groupby(members, key=lambda item: item.key.group))
    ]


def _oldest(groups: Sequence[Group]) -> int:
    spans = [span for group in groups for item in group.members for tape in item.tapes for span in tape.spans]
    return max((span.policy_version for span in spans if span.policy_version is not None), default=0)


def _known_group(
    group: Group, *, rules: RewardRules, oldest: int, lent: PlannedStep, plain: bool = False
) -> list[Known]:
    buckets: dict[str, Bucket] = {}
    why: dict[str, str] = {}
    exempt = frozenset(lent.borrowed.records)
    seen = usable_members(group, rules=rules, oldest=oldest, buckets=buckets, why=why, exempt=exempt)
    members = {item.id: credited_as(item, episode, lent.scored) for item, episode in seen}
    episodes = {name: member.episode for name, member in members.items()}
    return [
        Known(
            id=item.id,
            episode=episodes[item.id] if item.id in episodes else f"{buckets[item.id].value}: {why[item.id]}",
            turns_N=trained_turns(item),
            columns=_recorded_columns(item, lent.scored, plain=plain),
        )
        for item in group.members
    ]


def _recorded_columns(item: Trajectory, scored: Scored, *, plain: bool) -> dict[str, Sequence[float | None]]:
    """Logprobs as recorded; ``plain`` leaves out those of another distribution than the whole one at temperature 1."""
    spans = [span for tape in item.tapes for span in tape.spans if _is_trained(span, item)]
    logprobs = [
        value
        for span in spans
        for value in (
            [None] * len(span)
            if span.logprobs is None or (plain and not _is_plain(span))
            else span.logprobs.astype(np.float64).tolist()
        )
    ]
    present = scored.present.get(item.id)
    behaviour = logprobs if present is None else present.astype(np.float64).tolist()
    reference = scored.reference.get(item.id)
    return {
        "logprob": behaviour,
        "behaviour_logprob": behaviour,
        **({} if reference is None else {"reference_logprob": reference.astype(np.float64).tolist()}),
    }


def _is_plain(span: Span) -> bool:
    is_whole = span.support is None or all(item is None for item in span.support)
    return is_whole and span.sampling is not None and span.sampling.temperature in (1.0, None)


def _is_trained(span: Span, item: Trajectory) -> bool:
    return span.origin is trained_origin(item)


def _group_tree(group: Group) -> Document:
    return {"task": group.task.id, "trajectories": [_trajectory_tree(item) for item in group.members]}


def _trajectory_tree(item: Trajectory) -> Document:
    tokens: list[list[Document]] = [[] for _ in item.turns]
    for tape in item.tapes:
        for span in (span for span in tape.spans if _is_trained(span, item)):
            logprobs = [None] * len(span) if span.logprobs is None else span.logprobs.astype(np.float64).tolist()
            tokens[span.turn] += [
                {"token_id": token, "logprob": logprob, "behaviour_logprob": logprob, "observation": False}
                for token, logprob in zip(span.token_ids.tolist(), logprobs, strict=True)
            ]
    return {
        "id": item.id,
        "reward": item.reward,
        "success": None if item.verdict is None else item.verdict.success,
        "outcome": item.outcome.reason.value,
        "turns": [
            {"state": turn.state_key, "value": turn.estimate("value"), "tokens": tokens[turn.index]}
            for turn in item.turns
        ],
    }


def _is_planned(
    line: PlanLine, planned: PlannedStep, *, algorithm: Algorithm, rules: RewardRules, max_age: int
) -> bool:
    assembled = assemble(
        planned.groups,
        algorithm=algorithm,
        rules=rules,
        version=line.version,
        max_age=max_age,
        borrowed=planned.borrowed,
        scored=planned.scored,
    )
    found: dict[str, list[object]] = {}
    for row in assembled.rows:
        found.setdefault(row.trajectory, []).extend(runs_of_row(row))
    return found == {row.trajectory: list(row.runs) for row in line.rows}


def _annotated(document: Document, found: Explanation, *, head: Document, notes: Sequence[str]) -> Document:
    groups = [
        {
            **group,
            "trajectories": [
                _trajectory(tree, told) for tree, told in zip(group["trajectories"], members, strict=True)
            ],
        }
        for group, members in zip(document["groups"], found.groups, strict=True)
    ]
    over = found.denominators
    return {
        **head,
        **document,
        "groups": groups,
        "loss": found.loss,
        "loss_parts": dict(found.parts),
        "denominators": {"tokens": over.tokens, "turns": over.turns, "trajectories": over.trajectories},
        "filtered": [
            {"group": at, "trajectory": told.id, "why": told.filtered}
            for at, members in enumerate(found.groups)
            for told in members
            if told.filtered is not None
        ],
        "notes": [*notes, *found.notes],
    }


def _trajectory(tree: Document, told: Explained) -> Document:
    turns = []
    for index, turn in enumerate(tree["turns"]):
        tokens, here = turn.get("tokens"), np.flatnonzero(told.turns_N == index).tolist()
        shared = _shared(told, here)
        made = {**turn, **({} if shared is None else {"advantage": shared})}
        if tokens is not None:
            places = iter(here)
            made["tokens"] = [_token(token, told, places) for token in tokens]
        turns.append(made)
    return {**tree, "filtered": told.filtered, "copies": told.copies, "turns": turns}


def _shared(told: Explained, here: Sequence[int]) -> float | None:
    if told.advantages_N is None or not here:
        return None
    found = {float(told.advantages_N[at]) for at in here}
    return found.pop() if len(found) == 1 else None


def _token(token: Document, told: Explained, places: Iterator[int]) -> Document:
    if token.get("observation", False):
        return {**token, "advantage": None, "weight": 0.0, "ratio": None, "clipped": None, "loss": None}
    at = next(places)
    ratio = None if told.ratios_N is None else float(told.ratios_N[at])
    return {
        **token,
        "advantage": None if told.advantages_N is None else float(told.advantages_N[at]),
        "weight": float(told.weights_N[at]),
        "ratio": None if ratio is None or isnan(ratio) else ratio,
        "clipped": None if told.clipped_N is None else bool(told.clipped_N[at]),
        "loss": None if told.losses_N is None else float(told.losses_N[at]),
    }
