"""The scorers a run fits: reward models and process reward models, each once, from records.

A fit is a function of records, settings and the seed of the run, so a resumed run that needs one fits the same again.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from kifu.monitor import RunFolder
from kifu.records import Group
from kifu.training.experiment.credit_layers import RewardModel
from kifu.training.experiment.layers import CollectionStage, LabellingStage, RankingStage
from kifu.training.experiment.stages import Stage
from kifu.training.experiment.stored import attempts
from kifu.training.update.process_model import FittedProcess, fit_process_model
from kifu.training.update.reward_model import FittedModel, fit_reward_model


class Attempted(Protocol):
    """A run with a record of its attempts."""

    @property
    def folder(self) -> RunFolder:
        """Where the record is."""
        ...

    @property
    def seed(self) -> int:
        """Of the run."""
        ...

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In order."""
        ...


class Scorers:
    """Keeps what was fitted.

    Args:
        bench: stages, seed and record of the run.
    """

    def __init__(self, bench: Attempted) -> None:
        self._bench = bench
        self._given: dict[RewardModel, FittedModel] = {}
        self._ranked: dict[str, FittedModel] = {}
        self._labelled: dict[str, FittedProcess] = {}

    def fit(self, stage: Stage) -> None:
        """Fit what a stage fits, from its own attempts, unless that was done."""
        match stage.fits:
            case RankingStage():
                self.reward_model(stage.name)
            case LabellingStage():
                self.process_model(stage.name)
            case CollectionStage() | None:
                pass

    def given(self, layer: RewardModel, groups: Sequence[Group]) -> FittedModel:
        """A reward model of records of other runs."""
        if layer not in self._given:
            self._given[layer] = fit_reward_model(groups, layer, seed=self._bench.seed)
        return self._given[layer]

    def reward_model(self, name: str) -> FittedModel:
        """The one that a stage of type ``ranking`` fits."""
        if name not in self._ranked:
            stage = self._stage(name)
            assert isinstance(stage.fits, RankingStage)
            self._ranked[name] = fit_reward_model(
                attempts(self._bench.folder.root, range(stage.first, stage.stop)), stage.fits.fit, seed=self._bench.seed
            )
        return self._ranked[name]

    def process_model(self, name: str) -> FittedProcess:
        """The one that a stage of type ``labelling`` fits."""
        if name not in self._labelled:
            stage = self._stage(name)
            assert isinstance(stage.fits, LabellingStage)
            self._labelled[name] = fit_process_model(
                attempts(self._bench.folder.root, range(stage.first, stage.stop)),
                stage.fits,
                rules=stage.rules,
                seed=self._bench.seed,
            )
        return self._labelled[name]

    @property
    def facts(self) -> Mapping[str, float | None]:
        """How each was fitted; the name of its stage stands before what a stage fitted."""
        found: dict[str, float | None] = {}
        for model in self._given.values():
            found |= _facts(model, "")
        for name, model in self._ranked.items():
            found |= _facts(model, f"{name}/")
        for name, process in self._labelled.items():
            found |= {
                f"{name}/labels": process.labels,
                f"{name}/held_out": process.held_out,
                f"{name}/error": process.error,
                f"{name}/baseline_error": process.baseline_error,
            }
        return found

    def _stage(self, name: str) -> Stage:
        return next(stage for stage in self._bench.stages if stage.name == name)


def _facts(model: FittedModel, before: str) -> dict[str, float | None]:
    return {
        f"{before}pairs": model.pairs,
        f"{before}held_out": model.held_out,
        f"{before}accuracy": model.accuracy,
    }
