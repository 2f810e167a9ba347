"""Facts that a model tells of the turns of a finished rollout; they go on record with the weights that told them.

What is scored is a function of the record, of the conversation as text, and of the method's rule. Nothing that was
sampled is encoded again.

Axes: ``T`` tokens of a request, ``N`` scored tokens, ``K`` turns.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

import numpy as np

from kifu.credit.scored import ANSWER, GoldScores, HindsightScores, NoScores, ScoredFacts
from kifu.envs import Task
from kifu.errors import EngineFailure, EnvironmentFailure, crossing
from kifu.policy import Sampler, ScoreRequest
from kifu.records import Estimate, Ints, Origin, Sampling, Trajectory, Turn, as_ints
from kifu.records.checks import placed_spans
from kifu.render import ChatRenderer, Message, Renderer, ToolView, TrustForm, with_trust
from kifu.render.tokenizer import Level

_PLAIN = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What is asked about every finished rollout, and whom."""

    rule: ScoredFacts
    scorer: Sampler
    """Its present weights answer."""
    gold: Callable[[Task], str | None]
    """The environment's gold answer; None where a task has none. Asked on a thread of its own."""


class Prompt(NamedTuple):
    """What stood before a turn, as text."""

    messages: int
    """Messages of the conversation before it."""
    tools: tuple[ToolView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A finished rollout as text."""

    messages: Sequence[Message]
    prompts: Sequence[Prompt]
    """One a turn."""
    renderer: Renderer
    trust: TrustForm | None = None
    """How observations were marked."""


class Question(NamedTuple):
    """One number to be computed."""

    turn: int
    name: str
    token_ids: Ints
    """``[T]``"""
    positions: Ints
    """``[N]`` positions whose logprobs are averaged."""


async def with_facts(trajectory: Trajectory, told: Conversation, *, task: Task, scoring: Scoring) -> Trajectory:
    """The record with an estimate for every fact of the rule.

    Args:
        trajectory: without them.
        told: the same rollout as text.
        task: its task.
        scoring: what is asked, and whom.

    Raises:
        EnvironmentFailure: the task has no gold answer, or asking for it failed.
        EngineFailure: the scorer failed.
    """
    rule, answer = scoring.rule, None
    if isinstance(rule, NoScores):
        return trajectory
    if isinstance(rule, GoldScores):
        with crossing(EnvironmentFailure, f"asking for the gold answer of {task.id}"):
            answer = await asyncio.to_thread(scoring.gold, task)
        if answer is None or not answer:
            raise EnvironmentFailure(f"task {task.id} has no gold answer, and the method scores one at every turn")
    with crossing(EngineFailure, f"laying out {type(rule).__name__} of {trajectory.id}"):
        asked = questions(trajectory, told, rule=rule, answer=answer or "")
    with crossing(EngineFailure, f"scoring {type(rule).__name__} of {trajectory.id}"):
        version, means = await _means(asked, scoring.scorer)
    found: dict[int, list[Estimate]] = {}
    for one, mean in zip(asked, means, strict=True):
        found.setdefault(one.turn, []).append(Estimate(name=one.name, value=mean, policy_version=version))
    turns = (replace(turn, estimates=(*turn.estimates, *found.get(turn.index, ()))) for turn in trajectory.turns)
    return replace(trajectory, turns=tuple(turns))


def questions(trajectory: Trajectory, told: Conversation, *, rule: ScoredFacts, answer: str) -> list[Question]:
    """Every number of a rule, as tokens.

    Args:
        trajectory: the record.
        told: the same rollout as text.
        rule: what is asked.
        answer: the gold answer, where the rule is about one.
    """
    match rule:
        case NoScores():
            return []
        case GoldScores():
            return _gold(trajectory, told, rule=rule, answer=answer)
        case HindsightScores():
            return _hindsight(trajectory, told, rule=rule)
        case _ as unreachable:
            assert_never(unreachable)


async def means(asked: Sequence[Question], scorer: Sampler) -> list[float]:
    """The mean logprob of each question under the scorer's weights; one without tokens is certain: 0 nats."""
    requests = [
        ScoreRequest(token_ids=one.token_ids, positions=one.positions, sampling=_PLAIN)
        for one in asked
        if one.positions.size
    ]
    scores = iter(await scorer.score(requests))
    return [float(np.mean(next(scores).logprobs, dtype=np.float64)) if one.positions.size else 0.0 for one in asked]


async def _means(asked: Sequence[Question], scorer: Sampler) -> tuple[int, list[float]]:
    """The version that answered, and its means."""
    while True:
        version = scorer.version
        found = await means(asked, scorer)
        if scorer.version == version:  # else weights were published in between: all numbers of a record are of one
            return version, found


def _gold(trajectory: Trajectory, told: Conversation, *, rule: GoldScores, answer: str) -> list[Question]:
    before, _, _ = rule.template.partition(ANSWER)
    lead, gold = _encoded(told.renderer, before, Level.AUTHOR), _encoded(told.renderer, answer, Level.DATA)
    contexts = [("gold_logprob", turn.index, _prefix(trajectory, turn)) for turn in trajectory.turns]
    if rule.after and trajectory.turns:
        last = trajectory.turns[-1]
        texts = [with_trust(result.text, result.trust, told.trust) for result in last.results]
        shown = _shown_after(trajectory, told, turn=last, texts=texts)
        contexts.append(("gold_logprob_after", last.index, shown))
    found = []
    for name, turn, context in contexts:
        start = context.size + lead.size
        ids = as_ints(np.concatenate([context, lead, gold]))
        found.append(Question(turn, name, ids, as_ints(np.arange(start, start + gold.size))))
    return found


def _hindsight(trajectory: Trajectory, told: Conversation, *, rule: HindsightScores) -> list[Question]:
    text = rule.text(final=_final(trajectory), outcome=_outcome(trajectory))
    places: dict[int, list[int]] = {turn.index: [] for turn in trajectory.turns}
    for placed in placed_spans(trajectory, origin=Origin.POLICY):
        places[placed.span.turn] += range(placed.start, placed.stop)
    found = []
    for turn in trajectory.turns:
        context = _with_hindsight(trajectory, told, turn=turn, text=text)
        written = trajectory.tape_ids(turn.tape)[turn.start : turn.stop]
        positions = as_ints([context.size + place - turn.start for place in places[turn.index]])
        ids = as_ints(np.concatenate([context, written]))
        found.append(Question(turn.index, "hindsight_logprob", ids, positions))
    return found


def _with_hindsight(trajectory: Trajectory, told: Conversation, *, turn: Turn, text: str) -> Ints:
    """``[T]`` what stood before a turn, with the text at the end of what was shown last."""
    prompt = told.prompts[turn.index]
    if turn.index == 0:
        *earlier, last = told.messages[: prompt.messages]
        shown = replace(last, content=f"{last.content}\n{text}")
        pieces = told.renderer.start([*earlier, shown], prompt.tools)
        return as_ints(np.concatenate([piece.token_ids for piece in pieces]))
    before = trajectory.turns[turn.index - 1]
    texts = [message.content for message in told.messages[told.prompts[before.index].messages + 1 : prompt.messages]]
    *earlier_texts, last_text = texts or [""]
    return _shown_after(trajectory, told, turn=before, texts=[*earlier_texts, f"{last_text}\n{text}".lstrip("\n")])


def _shown_after(trajectory: Trajectory, told: Conversation, *, turn: Turn, texts: Sequence[str]) -> Ints:
    """``[T]`` the context when these texts are shown after a turn, the next generation prompt included."""
    ids, prompt, renderer = (
        as_ints(trajectory.tape_ids(turn.tape)[: turn.stop]),
        told.prompts[turn.index],
        told.renderer,
    )
    ended = bool(ids.size) and int(ids[-1]) in renderer.stop_ids
    history = told.messages[: prompt.messages + 1]
    extension = renderer.extend(ids, history, texts, ended=ended, tools=prompt.tools)
    kept = ids if extension.fork_at is None else ids[: extension.fork_at]
    return as_ints(np.concatenate([kept, *(piece.token_ids for piece in extension.pieces)]))


def _prefix(trajectory: Trajectory, turn: Turn) -> Ints:
    """``[T]`` what stood before a turn, exactly."""
    return as_ints(trajectory.tape_ids(turn.tape)[: turn.start])


def _final(trajectory: Trajectory) -> str:
    last = trajectory.turns[-1]
    shown = "\n".join(result.text for result in last.results if result.text)
    return shown or last.text


def _outcome(trajectory: Trajectory) -> str:
    success = None if trajectory.verdict is None else trajectory.verdict.success
    return "unknown" if success is None else "success" if success else "failure"


def _encoded(renderer: Renderer, text: str, level: Level) -> Ints:
    if not isinstance(renderer, ChatRenderer):
        raise EngineFailure(f"{type(renderer).__name__} encodes no free text; facts are scored for language models")
    return renderer.tokenizer.encode(text, level) if text else as_ints([])
