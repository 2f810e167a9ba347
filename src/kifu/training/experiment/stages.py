"""The stages of a run: consecutive steps with one method, one optimizer and one place to start from, checked."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, assert_never

from kifu.algorithms import Algorithm, build_algorithm, options_of
from kifu.credit import Bootstrap, CutTreatment, Exclude, RefreshedPairs, StoredPairs, StoredTrajectories, Terminal
from kifu.credit.reading import RewardRules
from kifu.errors import ExperimentError, nearest
from kifu.objectives import PolicyObjective
from kifu.policy import AdamW
from kifu.training.experiment.asking_stages import Collecting, Labelling, Ranking
from kifu.training.experiment.costs import check_costs
from kifu.training.experiment.credit_layers import CreditLayer, ProcessSignal, StageModel
from kifu.training.experiment.discount import UNDISCOUNTED
from kifu.training.experiment.layers import (
    AskingStage,
    CollectionStage,
    Demonstrations,
    DemonstrationStage,
    Experiment,
    FreshData,
    LabellingStage,
    NoWarmStart,
    Optimizer,
    RankingStage,
    RecurrentPolicy,
    StageLayer,
    StageRecords,
    Stored,
    TrainStage,
    UpdateLayer,
)
from kifu.training.experiment.methods import named_algorithm

BASE = "base"
"""The weights a run begins with, as a place to start a stage from."""
_ASKING: Mapping[str, Algorithm] = {"ranking": Ranking(), "labelling": Labelling(), "collection": Collecting()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive steps with one algorithm and one optimizer."""

    name: str
    method: str
    """Id of the algorithm, or the type of a stage that trains no policy."""
    algorithm: Algorithm
    optimizer: AdamW
    first: int
    steps: int
    credit: CreditLayer
    update: UpdateLayer
    rules: RewardRules
    demonstrations: Demonstrations | None = None
    """Scripted traces instead of rollouts."""
    stored: Stored | StageRecords | None = None
    """Records of other runs, or of an earlier stage, instead of rollouts."""
    fits: AskingStage | None = None
    """What the rollouts are for where the policy is not trained on them; a scorer is fitted when the last is there."""
    start: str | None = None
    """``base`` or the name of a stage whose last weights this one begins with; None goes on with what is there."""
    evaluates: bool = True
    """Whether the policy is evaluated before the first step."""

    @property
    def stop(self) -> int:
        """The step after the last."""
        return self.first + self.steps

    @property
    def samples(self) -> bool:
        """Whether it makes attempts of the policy."""
        return self.demonstrations is None and (self.stored is None or self.refreshes)

    @property
    def refreshes(self) -> bool:
        """Whether it samples in states of stored records."""
        return self.stored is not None and isinstance(self.algorithm.plan.data, RefreshedPairs)

    def to_json(self) -> dict[str, Any]:
        """For the protocol: everything that defines the stage."""
        found: dict[str, Any] = {"name": self.name, "method": self.method, "steps": self.steps, "from": self.start}
        if self.fits is not None:
            return {**found, **self.fits.model_dump(mode="json")}
        found |= {
            "credit": {**self.credit.model_dump(mode="json"), "options": options_of(self.algorithm)},
            "update": self.update.model_dump(mode="json"),
        }
        if self.demonstrations is not None:
            found["demonstrations"] = self.demonstrations.model_dump(mode="json")
        return found


def stages_of(experiment: Experiment) -> tuple[Stage, ...]:
    """The stages of an experiment, in order; without a list of them the warm start and the method.

    Raises:
        ExperimentError: a method, an option or the name of a stage that does not exist.
    """
    layers: Mapping[str, StageLayer] = experiment.stages or {
        "train": TrainStage(type="train", credit=experiment.credit, update=experiment.update)
    }
    warm = experiment.update.warm_start
    found: list[Stage] = []
    if not experiment.stages and isinstance(warm, Demonstrations):
        found.append(_imitation("warm start", warm, experiment=experiment, clip=experiment.update.clip_norm))
    for name, layer in layers.items():
        first = sum(stage.steps for stage in found)
        match layer:
            case DemonstrationStage():
                shown = Demonstrations(
                    steps=layer.steps,
                    traces_per_step=layer.traces_per_step,
                    noise=layer.noise,
                    optimizer=layer.optimizer,
                )
                found.append(
                    _imitation(name, shown, experiment=experiment, clip=layer.clip_norm, first=first, start=layer.start)
                )
            case TrainStage():
                with in_stage(name, experiment):
                    found.append(_training(name, layer, experiment=experiment, first=first))
            case RankingStage() | LabellingStage() | CollectionStage():
                found.append(_judging(name, layer, experiment=experiment, first=first))
            case _ as unreachable:
                assert_never(unreachable)
    if experiment.stages:
        _check_names(found)
    return tuple(found)


@contextmanager
def in_stage(name: str, experiment: Experiment) -> Iterator[None]:
    """Errors about one of several stages say which."""
    try:
        yield
    except ExperimentError as error:
        if not experiment.stages:
            raise
        raise ExperimentError(f"stages.{name}: {error}") from error


def _imitation(
    name: str,
    layer: Demonstrations,
    *,
    experiment: Experiment,
    clip: float | None,
    first: int = 0,
    start: str | None = None,
) -> Stage:
    credit = CreditLayer(algorithm="sft", gamma=experiment.credit.gamma)
    is_listed = bool(experiment.stages)
    return Stage(
        name=name,
        method="sft",
        algorithm=build_algorithm("sft"),
        optimizer=_adamw(layer.optimizer, clip=clip, steps=layer.steps),
        first=first,
        steps=layer.steps,
        credit=credit,
        update=_update(layer.steps, layer.traces_per_step, 1, optimizer=layer.optimizer)
        if is_listed
        else experiment.update,
        rules=replace(_rules(credit if is_listed else experiment.credit, experiment), charges=()),
        demonstrations=layer,
        start=start,
        evaluates=is_listed,
    )


def _training(name: str, layer: TrainStage, *, experiment: Experiment, first: int) -> Stage:
    update, algorithm = layer.update, named_algorithm(layer.credit)
    return Stage(
        name=name,
        method=layer.credit.algorithm,
        algorithm=algorithm,
        optimizer=_adamw(update.optimizer, clip=update.clip_norm, steps=update.steps * algorithm.plan.epochs),
        first=first,
        steps=update.steps,
        credit=layer.credit,
        update=update,
        rules=_rules(layer.credit, experiment)
        if not isinstance(algorithm.plan.data, RefreshedPairs)
        else replace(_rules(layer.credit, experiment), cut=Terminal()),  # one-turn rollouts are cut, and judged by none
        stored=None if isinstance(update.data, FreshData) else update.data,
        start=layer.start,
    )


def _judging(name: str, layer: AskingStage, *, experiment: Experiment, first: int) -> Stage:
    """A stage that trains no policy; its optimizer never takes a step."""
    idle = Optimizer(learning_rate=1e-8)
    credit = CreditLayer(algorithm=layer.type, gamma=UNDISCOUNTED)
    return Stage(
        name=name,
        method=layer.type,
        algorithm=_ASKING[layer.type],
        optimizer=_adamw(idle, clip=None, steps=layer.steps),
        first=first,
        steps=layer.steps,
        credit=credit,
        update=_update(layer.steps, layer.prompts_per_step, layer.group_size, optimizer=idle),
        rules=_rules(credit, experiment),
        fits=layer,
    )


def _update(steps: int, prompts: int, size: int, *, optimizer: Optimizer) -> UpdateLayer:
    return UpdateLayer(steps=steps, prompts_per_step=prompts, group_size=size, optimizer=optimizer)


def _rules(credit: CreditLayer, experiment: Experiment) -> RewardRules:
    assert credit.gamma is not None, "kifu.training.experiment.discount settles it before stages are made"
    cuts: dict[str, CutTreatment] = {"exclude": Exclude(), "terminal": Terminal(), "bootstrap": Bootstrap()}
    return RewardRules(
        gamma=credit.gamma,
        components=credit.components,
        shaping=credit.shaping.type == "potential",
        cut=cuts[experiment.environment.on_truncation],
        charges=credit.charges,
    )


def _adamw(layer: Optimizer, *, clip: float | None, steps: int) -> AdamW:
    return AdamW(
        learning_rate=layer.learning_rate,
        betas=layer.betas,
        eps=layer.eps,
        weight_decay=layer.weight_decay,
        clip_norm=clip,
        warmup_steps=layer.warmup_steps,
        schedule=layer.schedule,
        total_steps=None if layer.schedule == "constant" else steps,
    )


def _check_names(stages: list[Stage]) -> None:
    """Refuse a stage that names one which is not before it, or one of the wrong type."""
    for at, stage in enumerate(stages):
        before = {item.name: item.method for item in stages[:at]}
        where = f"stages.{stage.name}"
        if stage.name == BASE:
            raise ExperimentError(f"{where}: `{BASE}` means the weights the run begins with; choose another name")
        if stage.start is not None and stage.start not in (BASE, *before):
            raise ExperimentError(
                f"{where}.from: no earlier stage `{stage.start}`; {nearest(stage.start, [BASE, *before])}"
            )
        if not isinstance(stage.update.warm_start, NoWarmStart):
            raise ExperimentError(f"{where}.update.warm_start: with [stages], write a stage of type `demonstrations`")
        if isinstance(stage.stored, StageRecords):
            _check_source(stage.stored.stage, stages[:at], where=f"{where}.update.data.stage")
        if isinstance(stage.credit.reward_model, StageModel):
            named = stage.credit.reward_model.stage
            _check_type(named, before, wanted="ranking", where=f"{where}.credit.reward_model.stage")
        for name, signal in stage.credit.signals.items():
            if isinstance(signal, ProcessSignal):
                _check_type(signal.stage, before, wanted="labelling", where=f"{where}.credit.signals.{name}.stage")


def _check_source(name: str, before: Sequence[Stage], *, where: str) -> None:
    """Refuse to learn from a stage that is not there or makes no records."""
    known = [stage.name for stage in before if stage.samples or stage.demonstrations is not None]
    if name in known:
        return
    if name in (stage.name for stage in before):
        raise ExperimentError(f"{where}: stage `{name}` learns from records itself and makes none; name theirs")
    advice = nearest(name, known) if known else "there is none; add one of type `collection`"
    raise ExperimentError(f"{where}: no earlier stage `{name}` that makes records; {advice}")


def _check_type(name: str, before: Mapping[str, str], *, wanted: str, where: str) -> None:
    if before.get(name) != wanted:
        known = [item for item, method in before.items() if method == wanted]
        advice = nearest(name, known) if known else f"there is none; add a stage of type `{wanted}`"
        raise ExperimentError(f"{where}: no earlier stage `{name}` of type `{wanted}`; {advice}")


def check_stage(stage: Stage, experiment: Experiment) -> None:
    """Refuse a stage whose method, data and policy contradict each other.

    Raises:
        ExperimentError: naming the field.
    """
    if stage.fits is None:
        _check_data(stage)
        if stage.demonstrations is None:
            check_costs(stage.credit, stage.algorithm)
        _check_models(stage, experiment)
    _check_policy(stage, experiment)


def _check_data(stage: Stage) -> None:
    plan, name = stage.algorithm.plan, stage.method
    if stage.demonstrations is None and plan.demonstrations and stage.stored is None:
        raise ExperimentError(
            f"credit.algorithm = `{name}` trains on demonstrations, and [update] collects rollouts; "
            "put it into update.warm_start, name records in update.data, or choose a method that learns from rollouts"
        )
    is_offline = plan.demonstrations or isinstance(plan.data, StoredTrajectories | StoredPairs | RefreshedPairs)
    if stage.demonstrations is None and is_offline is not (stage.stored is not None):
        raise ExperimentError(
            f"credit.algorithm = `{name}` learns from records of finished runs or of an earlier stage; "
            "name them: update.data = { type = 'stored', runs = ['runs/…'] } or { type = 'stage', stage = '…' }"
            if is_offline
            else f"credit.algorithm = `{name}` learns from its own rollouts, and update.data names other records; "
            "choose a method that learns offline: sft, offline_awr, dpo"
        )


def _check_models(stage: Stage, experiment: Experiment) -> None:
    plan, name, has_model = stage.algorithm.plan, stage.method, stage.credit.reward_model is not None
    if stage.demonstrations is None and plan.needs_reward_model is not has_model:
        raise ExperimentError(
            f"credit.algorithm = `{name}` learns from a reward model; name the runs it is fitted to: "
            "credit.reward_model = { runs = ['runs/…'] }, or a stage of type `ranking`: { stage = '…' }"
            if plan.needs_reward_model
            else f"credit.algorithm = `{name}` does not look at credit.reward_model; drop it, or use rlhf_ppo"
        )
    if not experiment.stages and isinstance(stage.credit.reward_model, StageModel):
        raise ExperimentError(
            "credit.reward_model.stage: the experiment has no [stages]; name runs, or write the stage"
        )
    if not experiment.stages and isinstance(stage.stored, StageRecords):
        raise ExperimentError("update.data.stage: the experiment has no [stages]; name runs, or write the stage")
    for signal, layer in stage.credit.signals.items():
        if not experiment.stages and isinstance(layer, ProcessSignal):
            raise ExperimentError(
                f"credit.signals.{signal}.stage: the experiment has no [stages]; write one of type `labelling`"
            )


def _check_policy(stage: Stage, experiment: Experiment) -> None:
    plan, name = stage.algorithm.plan, stage.method
    samples = stage.demonstrations is None and stage.stored is None
    if plan.needs_group and stage.update.group_size < 2 and samples:
        raise ExperimentError(
            f"credit.algorithm = `{name}` compares attempts at one task: update.group_size must be at least 2, "
            f"found {stage.update.group_size}"
        )
    if plan.needs_value and not isinstance(experiment.policy, RecurrentPolicy):
        raise ExperimentError(
            f"credit.algorithm = `{name}` needs a critic, and the engine `{experiment.policy.engine}` has none; "
            "use engine = `recurrent`, or a method without a critic such as grpo"
        )
    if experiment.environment.on_truncation == "bootstrap" and not isinstance(experiment.policy, RecurrentPolicy):
        raise ExperimentError(
            "environment.on_truncation = `bootstrap` needs V(h_T), and this policy has no critic; "
            "use `exclude` or `terminal`"
        )
    fresh = stage.samples and stage.fits is None and stage.stored is None
    if experiment.environment.on_truncation == "bootstrap" and fresh and not _trains_critic(stage.algorithm):
        raise ExperimentError(
            f"environment.on_truncation = `bootstrap` takes V(h_T) from the critic, and credit.algorithm = `{name}` "
            "trains none here: cut attempts would be paid what an untrained network says; use `exclude` or `terminal`"
        )


def _trains_critic(algorithm: Algorithm) -> bool:
    objective = algorithm.objective()
    if isinstance(objective, PolicyObjective):
        return objective.value is not None and objective.value.coefficient > 0
    return algorithm.plan.needs_value
