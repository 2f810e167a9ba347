"""What a model told of recorded turns, asked again of the version that told it: values, facts of finished rollouts."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from kifu.credit.scored import GoldScores, NoScores, ScoredFacts
from kifu.envs.calling.waiting import to_end
from kifu.errors import BoundaryError, KifuError, StorageError
from kifu.policy import Sampler, ScoreRequest
from kifu.records import Estimate, Origin, Purpose, Recomputed, Sampling, Trajectory, Turn, as_ints
from kifu.records.checks import placed_spans
from kifu.rollout import Conversation, Question, means, questions, retell
from kifu.training.inspection.opened_run import OpenedRun

_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """One number to be computed."""

    record: int
    turn: int
    name: str
    version: int
    question: Question | None = None
    """None asks for V."""
    request: ScoreRequest | None = None


class Estimates:
    """Implements `kifu.records.AskAgain` with the kept versions of a run.

    Args:
        run: whose records.
        kept: versions there are.
        sampler_of: the engine's sampler at one of them.
    """

    def __init__(
        self, run: OpenedRun, *, kept: Collection[int], sampler_of: Callable[[int], Awaitable[Sampler]]
    ) -> None:
        self._run = run
        self._kept = kept
        self._sampler_of = sampler_of

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[list[Recomputed]]:
        """One number per turn and name that can be asked for, and why others cannot."""
        return to_end(self._all(trajectories))

    async def _all(self, trajectories: Sequence[Trajectory]) -> list[list[Recomputed]]:
        found: list[list[Recomputed]] = [[] for _ in trajectories]
        jobs: list[_Job] = []
        for at, trajectory in enumerate(trajectories):
            jobs += _values(at, trajectory)
            asked, why = await self._facts(trajectory)
            if why is not None:
                found[at].append(Recomputed(turn=0, name="facts", why_not=why))
            jobs += [
                _Job(record=at, turn=one.turn, name=one.name, version=_version(trajectory, one), question=one)
                for one in asked
            ]
        for version in sorted({job.version for job in jobs}):
            mine = [job for job in jobs if job.version == version]
            for first in range(0, len(mine), _BATCH):
                await self._answer(version, mine[first : first + _BATCH], found)
        return found

    async def _answer(self, version: int, jobs: Sequence[_Job], found: list[list[Recomputed]]) -> None:
        why = f"estimates of version {version} cannot be recomputed"
        values: list[float | None] = [None] * len(jobs)
        if version in self._kept:
            try:
                values = await _computed(await self._sampler_of(version), jobs)
            except StorageError as error:
                why = f"{why}: {error}"
        for job, value in zip(jobs, values, strict=True):
            told = Recomputed(turn=job.turn, name=job.name, value=value, why_not=why if value is None else None)
            found[job.record].append(told)

    async def _facts(self, trajectory: Trajectory) -> tuple[Sequence[Question], str | None]:
        """What was asked about a rollout when it was over, or why that cannot be told any more."""
        rule = self._rule(trajectory)
        if isinstance(rule, NoScores):
            return (), None
        prepared, answer = self._run.prepared, None
        renderer = prepared.setting.renderer
        needs_text = not isinstance(rule, GoldScores) or rule.after
        if needs_text and not prepared.environment.capabilities.deterministic:
            return (), f"facts: environment `{trajectory.environment.id}` declares itself not deterministic"
        try:
            task = prepared.task_of(trajectory)
            if task is None:
                return (), f"facts: the environment no longer makes task `{trajectory.task.id}` from its seed"
            if isinstance(rule, GoldScores):
                answer = prepared.gold_answer(task)
            told = Conversation(messages=(), prompts=(), renderer=renderer, trust=prepared.setting.trust)
            if needs_text:
                told = await retell(prepared.setting, trajectory, task=task)
        except (BoundaryError, KifuError) as error:
            return (), f"facts: what was asked cannot be laid out again: {error}"
        return questions(trajectory, told, rule=rule, answer=answer or ""), None

    def _rule(self, trajectory: Trajectory) -> ScoredFacts:
        key = trajectory.key
        stage = next((stage for stage in self._run.prepared.stages if stage.first <= key.step < stage.stop), None)
        if stage is None or key.purpose is not Purpose.TRAIN or trajectory.outcome.infra_error:
            return NoScores()
        return stage.algorithm.plan.scores


def _values(at: int, trajectory: Trajectory) -> list[_Job]:
    found = []
    for turn in trajectory.turns:
        latest = _latest(turn, "value")
        if latest is None:
            continue
        ids = trajectory.tape_ids(turn.tape)[: turn.start]
        request = ScoreRequest(
            token_ids=as_ints([*ids.tolist(), 0]), positions=as_ints([turn.start]), sampling=Sampling()
        )
        found.append(_Job(record=at, turn=turn.index, name="value", version=latest.policy_version, request=request))
    return found


async def _computed(sampler: Sampler, jobs: Sequence[_Job]) -> list[float | None]:
    asked = [job.question for job in jobs if job.question is not None]
    requests = [job.request for job in jobs if job.request is not None]
    told = iter(await means(asked, sampler) if asked else ())
    scores = iter(await sampler.score(requests) if requests else ())
    found: list[float | None] = []
    for job in jobs:
        if job.question is not None:
            found.append(next(told))
            continue
        value = next(scores).value
        found.append(None if value is None else float(np.asarray(value)[0]))
    return found


def _latest(turn: Turn, name: str) -> Estimate | None:
    return next((one for one in reversed(turn.estimates) if one.name == name), None)


def _version(trajectory: Trajectory, one: Question) -> int:
    """The version that told it; where nothing stands there, the one that told the same of another turn, or sampled."""
    latest = _latest(trajectory.turns[one.turn], one.name)
    if latest is not None:
        return latest.policy_version
    others = [found for turn in trajectory.turns if (found := _latest(turn, one.name)) is not None]
    if others:
        return others[-1].policy_version
    spans = placed_spans(trajectory, origin=Origin.POLICY)
    return max((item.span.policy_version for item in spans if item.span.policy_version is not None), default=0)
