"""Judges for Best-of-N: the reward model of a run, or a function of an attempt. None of them sees the verdict."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import TypeAlias

from kifu.envs.files import load_module
from kifu.errors import ExperimentError, UsageError
from kifu.records import ToolCall, Trajectory
from kifu.training.collection.supply import read_stored
from kifu.training.experiment.credit_layers import RewardModel, StageModel
from kifu.training.experiment.layers import RankingStage, Stored
from kifu.training.inspection.opened_run import OpenedRun, opened
from kifu.training.update.reward_model import FittedModel
from kifu.training.update.scorers import Scorers

_SHARED = ("tokenizer", "template", "parser")
"""What must be equal for the ids of two runs to mean the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTurn:
    """One message and what came back; no reward."""

    text: str
    calls: tuple[ToolCall, ...]
    """As executed."""
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What a judge sees of an attempt: neither verdict, nor how it ended, nor what it was paid, nor hidden answers."""

    task: str
    """Its id."""
    family: str
    turns: tuple[CandidateTurn, ...]

    @property
    def answer(self) -> str:
        """The last message."""
        return self.turns[-1].text if self.turns else ""


CandidateJudge: TypeAlias = Callable[[Candidate], float]
Scores: TypeAlias = Callable[[Iterable[Trajectory]], Mapping[str, float]]


def candidate_of(record: Trajectory) -> Candidate:
    """An attempt without what only the verdict and the rewards say."""
    return Candidate(
        task=record.task.id,
        family=record.task.family,
        turns=tuple(
            CandidateTurn(
                text=turn.text, calls=turn.action.executed, results=tuple(result.text for result in turn.results)
            )
            for turn in record.turns
        ),
    )


def judge_of(name: str, run: OpenedRun) -> Scores:
    """What scores attempts of a run.

    Args:
        name: a run folder with a reward model, or ``file.py:function`` / ``module:function`` of a `Candidate`.
        run: whose attempts.

    Raises:
        UsageError: neither a run nor a function.
        ExperimentError: the run has no reward model, or its tokens mean something else.
        StorageError: the run cannot be read.
    """
    source, colon, attribute = name.rpartition(":")
    if not colon or Path(name).is_dir():
        if not Path(name).is_dir():
            raise UsageError(
                f"--judge: found {name!r}, expected a run folder with credit.reward_model, or file.py:function of an "
                "attempt"
            )
        return _model_judge(Path(name), run)
    found = getattr(load_module(source, wanted="judge"), attribute, None)
    if not callable(found):
        raise UsageError(f"--judge: `{source}` has no function `{attribute}` (candidate)")
    return _function_judge(name, found)


def _function_judge(name: str, judge: CandidateJudge) -> Scores:
    def score(records: Iterable[Trajectory]) -> Mapping[str, float]:
        found = {}
        for record in records:
            if record.outcome.infra_error:
                continue
            try:
                told: object = judge(candidate_of(record))
            except Exception as cause:  # whatever a user's function raises
                raise UsageError(f"--judge: `{name}` raised {type(cause).__name__} for {record.id}: {cause}") from cause
            if not isinstance(told, Real) or not isfinite(told):
                raise UsageError(f"--judge: `{name}` gave {told!r:.100} for {record.id}, expected a finite number")
            found[record.id] = float(told)
        return found

    return score


def _model_judge(root: Path, run: OpenedRun) -> Scores:
    with opened(root) as other:
        for what in _SHARED:
            mine, yours = (getattr(one.prepared.setting.provenance, what) for one in (run, other))
            if mine != yours:
                raise ExperimentError(
                    f"--judge: {root} has {what} {yours[:12]}, the evaluated run has {mine[:12]}; its reward model "
                    "would read other tokens"
                )
        model = fitted_model(other)

    def score(records: Iterable[Trajectory]) -> Mapping[str, float]:
        return model.score(record for record in records if not record.outcome.infra_error and record.turns)

    return score


def fitted_model(run: OpenedRun) -> FittedModel:
    """The reward model of a run, fitted again from its records: the last one where several stages have one.

    Raises:
        ExperimentError: it has none.
    """
    scorers = Scorers(run)
    for stage in reversed(run.stages):
        match stage.credit.reward_model:
            case RewardModel() as layer:
                given = read_stored(Stored(runs=layer.runs), run.prepared, root=run.folder.root, seed=run.seed)
                return scorers.given(layer, given.groups)
            case StageModel() as layer:
                return scorers.reward_model(layer.stage)
            case None if isinstance(stage.fits, RankingStage):
                return scorers.reward_model(stage.name)
            case None:
                continue
    raise ExperimentError(
        f"--judge: {run.folder.root} fitted no reward model; name a run with credit.reward_model or a stage of type "
        "`ranking`, or file.py:function of an attempt"
    )
