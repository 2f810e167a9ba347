"""What `kifu check` measures before a run: memory, time, disk, what agents without a model earn, informative groups."""

import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kifu.algorithms import Card
from kifu.envs.card import AgentScore, environment_card
from kifu.errors import BoundaryError, NoSignalError, UsageError
from kifu.monitor import peak_rss_bytes, read_metrics
from kifu.training.experiment.costs import told_costs
from kifu.training.experiment.discount import reads_returns
from kifu.training.experiment.layers import (
    CollectionStage,
    DemonstrationStage,
    Experiment,
    HfPolicy,
    LabellingStage,
    Lora,
    NoWarmStart,
    RankingStage,
    StageLayer,
    StageRecords,
    UpdateLayer,
)
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.reading import Loaded
from kifu.training.run import train

_MEASURED_PROMPTS = 2
_VERSION_SHARE = 0.04
"""Size of a stored version against the whole weights, as a compressed difference."""
_CARD_TASKS = 16
_RECORD_BYTES = 6_000
"""Of one stored rollout, a coarse figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFound:
    """One stage of the run."""

    name: str
    method: str
    steps: int
    start: str | None
    """The stage whose weights it begins with, or ``base``; None goes on."""
    data: str | None
    """The stage whose records it learns from, where it does."""
    gamma: float | None
    """Discount of the returns it credits; None: it reads none."""
    card: Card
    costs: tuple[str, ...] = ()
    """Where each cost enters that the experiment names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """Findings; estimates are of the whole run on this machine."""

    name: str
    protocol: str
    missing: tuple[str, ...]
    """``layer.field`` of everything the protocol still needs."""
    parameters: int | None
    memory_bytes: int | None
    """Estimated peak; None where nothing was measured."""
    step_s: float | None
    """Wall seconds of one step, an upper estimate from measured small ones; None where nothing was measured."""
    run_s: float | None
    disk_bytes: int
    """Estimated size of the run folder."""
    disk_free_bytes: int
    scores: tuple[AgentScore, ...]
    """What the null and the random agent earn, and the demonstrator where there is one."""
    informative: int | None
    """Groups of the measured steps whose rewards differ."""
    groups: int | None
    stages: tuple[StageFound, ...] = ()
    """In order, each with its card."""
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the run can start."""
        return not self.missing

    def to_json(self) -> dict[str, Any]:
        """Field by field."""
        found = asdict(self)
        found["scores"] = [{**asdict(score), "components": dict(score.components)} for score in self.scores]
        found["stages"] = [
            {"name": item.name, "method": item.method, "steps": item.steps, "from": item.start, "data": item.data}
            | {"gamma": item.gamma, "card": asdict(item.card), "costs": list(item.costs)}
            for item in self.stages
        ]
        return {**found, "missing": list(self.missing), "warnings": list(self.warnings), "ok": self.ok}


def preflight(loaded: Loaded, *, measure: bool = True, out: Path | None = None) -> Preflight:
    """Prepare an experiment and estimate what its run will need.

    Args:
        loaded: the experiment.
        measure: run two small steps in a temporary folder; without it time, memory and groups stay unknown.
        out: where the run would be written, for the free space.

    Raises:
        ExperimentError: a layer is contradictory.
        ModelError: the model cannot be had.
    """
    prepared = prepare(loaded)
    warnings: list[str] = []
    measured = None
    if measure and not prepared.protocol.missing:
        try:
            measured = _measured(prepared)
        except NoSignalError as stopped:
            warnings.append(f"two small steps of every stage taught nothing: {stopped}")
    parameters = None if prepared.model is None else prepared.model.num_parameters
    disk, free = _disk_bytes(prepared), shutil.disk_usage(_existing(out or Path.cwd())).free
    if disk > free:
        warnings.append(f"the run folder may need {disk:,} bytes, {free:,} are free; free space or shorten the run")
    needs_signal = prepared.stages[0].algorithm.plan.needs_group and len(prepared.stages) == 1
    if measured is not None and needs_signal and measured.groups and not measured.informative:
        warnings.append(
            f"none of {measured.groups} measured groups had different rewards: raise update.group_size, choose easier "
            "tasks, warm-start on demonstrations, give the members of a group different temperatures "
            "(policy.decoding.temperature = [0.8, 1.0, 1.2]), or add a checkable partial reward"
        )
    scores = _scores(prepared, warnings)
    return Preflight(
        name=loaded.name,
        protocol=prepared.protocol.hash,
        missing=prepared.protocol.missing,
        parameters=parameters,
        memory_bytes=None if measured is None else measured.memory_bytes,
        step_s=None if measured is None else measured.step_s,
        run_s=None if measured is None else measured.run_s,
        disk_bytes=disk,
        disk_free_bytes=free,
        scores=scores,
        informative=None if measured is None else measured.informative,
        groups=None if measured is None else measured.groups,
        stages=tuple(
            StageFound(
                name=stage.name,
                method=stage.method,
                steps=stage.steps,
                start=stage.start,
                data=stage.stored.stage if isinstance(stage.stored, StageRecords) else None,
                gamma=stage.rules.gamma if stage.fits is None and reads_returns(stage.algorithm.plan) else None,
                card=stage.algorithm.card,
                costs=told_costs(stage.credit),
            )
            for stage in prepared.stages
        ),
        warnings=tuple(warnings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    step_s: float
    run_s: float
    memory_bytes: int
    informative: int
    groups: int


def _measured(prepared: Prepared) -> _Measured:
    """Two steps with few prompts in a temporary folder; the second, warm one is scaled to the prompts of a whole one.

    With stages, one or two such steps of each. Rollouts of a whole step share more work: the time is an upper estimate.
    """
    experiment = prepared.experiment
    with tempfile.TemporaryDirectory(prefix="kifu-check-") as scratch:
        small = replace(prepared.loaded, experiment=_small(experiment))
        result = train(small, out=Path(scratch) / "run", quiet=True)
        rows = read_metrics(result.folder / "metrics.jsonl")
    last = {row["stage"]: row["seconds"] for row in rows}
    step_s = {
        stage.name: last[stage.name] * (_share(stage.update.prompts_per_step) if stage.fits is None else 1.0)
        for stage in prepared.stages
        if stage.name in last
    }
    main = prepared.stages[-1].name
    return _Measured(
        step_s=step_s[main],
        run_s=sum(step_s.get(stage.name, step_s[main]) * stage.steps for stage in prepared.stages),
        memory_bytes=peak_rss_bytes(),
        informative=sum(row["informative_groups"] for row in rows),
        groups=sum(row["groups"] for row in rows),
    )


def _share(prompts: int) -> float:
    """How much more a whole step holds than a small one."""
    return prompts / min(_MEASURED_PROMPTS, prompts)


def _small(experiment: Experiment) -> Experiment:
    """The experiment with two steps of few prompts, its stages likewise."""
    evaluation = experiment.evaluation.model_copy(update={"tasks": 1, "tries": 1, "every": None})
    stages = {name: _small_stage(stage) for name, stage in experiment.stages.items()}
    update = _small_update(experiment.update)
    return experiment.model_copy(update={"update": update, "evaluation": evaluation, "stages": stages})


def _small_update(update: UpdateLayer) -> UpdateLayer:
    prompts = min(_MEASURED_PROMPTS, update.prompts_per_step)
    return update.model_copy(
        update={"steps": 2, "prompts_per_step": prompts, "warm_start": NoWarmStart(), "patience": 3, "max_age": 0}
    )


def _small_stage(stage: StageLayer) -> StageLayer:
    match stage:
        case DemonstrationStage():
            return stage.model_copy(update={"steps": 1, "traces_per_step": _MEASURED_PROMPTS})
        case RankingStage() | LabellingStage() | CollectionStage():  # whole, or there may be nothing to fit to
            return stage
        case _:
            return stage.model_copy(update={"update": _small_update(stage.update)})


def _disk_bytes(prepared: Prepared) -> int:
    """Versions, two checkpoints and records, coarsely."""
    experiment = prepared.experiment
    steps = sum(stage.steps for stage in prepared.stages)
    evaluations = 2 + (steps // experiment.evaluation.every if experiment.evaluation.every else 0)
    rollouts = sum(stage.steps * stage.update.prompts_per_step * stage.update.group_size for stage in prepared.stages)
    rollouts += evaluations * experiment.evaluation.tasks * experiment.evaluation.tries
    records = rollouts * _RECORD_BYTES
    if prepared.model is None:
        return records
    policy, parameters = experiment.policy, prepared.model.num_parameters
    assert isinstance(policy, HfPolicy)
    if isinstance(policy.weights, Lora):
        trained = int(parameters * min(1.0, 0.002 * policy.weights.rank))
        return records + trained * 4 * (steps + 1) + 2 * trained * 12
    width = 2 if prepared.machine.sampler_dtype == "bfloat16" else 4
    return records + int(parameters * width * (1 + _VERSION_SHARE * steps)) + 2 * parameters * 12


def _scores(prepared: Prepared, warnings: list[str]) -> tuple[AgentScore, ...]:
    try:
        card = environment_card(
            prepared.environment, num_tasks=min(_CARD_TASKS, len(prepared.loaded.tasks) or _CARD_TASKS)
        )
    except (UsageError, BoundaryError) as error:
        warnings.append(f"the null and the random agent could not be scored: {error}")
        return ()
    return card.scores


def _existing(path: Path) -> Path:
    """The nearest folder that is there."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path
