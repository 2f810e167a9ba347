"""From a loaded experiment to everything a run needs short of weights in memory and a folder on disk."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kifu.agents import Agent
from kifu.credit.reading import RewardRules
from kifu.envs import Environment, Task
from kifu.envs.declared import asking, check_declared, tool_names
from kifu.envs.questions import questions
from kifu.envs.registry import resolve_environment
from kifu.envs.source import source_of
from kifu.errors import ExperimentError
from kifu.models import ModelFolder, pull
from kifu.policy import EngineSpec, FullWeights, LoraWeights, Machine, Weights
from kifu.records import Provenance, Sampling, Trajectory
from kifu.render import (
    DIALECTS,
    Renderer,
    SymbolRenderer,
    load_renderer,
)
from kifu.rollout import Limits, Script, Setting
from kifu.training.experiment.agent_layers import OutsideAgentLayer
from kifu.training.experiment.components import check_paid
from kifu.training.experiment.discount import with_discount
from kifu.training.experiment.examples import script_of, worked_examples
from kifu.training.experiment.first_weights import start_digest
from kifu.training.experiment.freeze import Identity, Protocol, freeze
from kifu.training.experiment.layers import Experiment, HfPolicy, Lora, RecurrentPolicy
from kifu.training.experiment.machine import resolve_machine
from kifu.training.experiment.outside_agent import Outsider, acting, outsider_of
from kifu.training.experiment.reading import Loaded
from kifu.training.experiment.stages import Stage, check_stage, in_stage, stages_of
from kifu.training.experiment.stored import stored_heads, stored_names
from kifu.training.experiment.strategy import check_history, check_memory, history_of, history_rule, own_agent
from kifu.training.experiment.suitability import (
    check_assurance,
    check_budget,
    check_refreshable,
    check_rollouts,
    check_scored,
    check_temperatures,
    check_values,
    check_verifiable,
    gold_of,
    room_for,
)
from kifu.training.experiment.tasks import (
    GeneratedTasks,
    ListedTasks,
    TaskSource,
    check_tasks,
    demonstration_task,
    hold_out,
    parse_splits,
    task_at,
    tasks_digest,
)

_EVALUATED_AT_ONCE = 64
_LIBRARIES = ("kifu", "numpy", "torch", "transformers", "tokenizers")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A checked and frozen experiment."""

    loaded: Loaded
    environment: type[Environment]
    renderer: Renderer
    stages: tuple[Stage, ...]
    rules: RewardRules
    """Of the last stage; each stage has its own."""
    protocol: Protocol
    machine: Machine
    agent: Agent
    setting: Setting
    """For collecting; see `evaluation_setting`."""
    model: ModelFolder | None
    vocabulary: int
    """Ids of a symbolic policy; 0 for a language model."""
    start: str | None = None
    """Digest of the weights the run begins with, where ``policy.from`` names another run."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Digest of every file of the environment's code, see `source_of`."""
    outsider: Outsider | None = None
    """Acts instead of ``agent``, heard through a gateway."""

    @property
    def experiment(self) -> Experiment:
        """The six layers."""
        return self.loaded.experiment

    @property
    def tool_seconds(self) -> float:
        """Seconds the environment may take for one answer."""
        return _limit(self.experiment)

    def evaluation_setting(self) -> Setting:
        """As for collecting, decoded as layer 6 says."""
        if self.experiment.evaluation.decoding == "sampled":
            return self.setting
        return self.setting.greedy()

    def task_source(self, seed: int) -> TaskSource:
        """Tasks by place for a run with this seed."""
        if self.loaded.tasks:
            return ListedTasks(tasks=self.loaded.tasks, seed=seed)
        return GeneratedTasks(
            generate=self.environment.tasks,
            ranges=parse_splits(self.experiment.environment.splits),
            seed=seed,
            limit_s=self.tool_seconds,
        )

    def task_of(self, trajectory: Trajectory) -> Task | None:
        """The task of a record: the listed one of its id, else made again from its seed; None when it differs.

        Raises:
            EnvironmentFailure: the environment raised, or took longer than the experiment allows.
        """
        listed = [task for task in self.loaded.tasks if task.id == trajectory.task.id]
        if listed:
            return listed[0]
        made = task_at(
            self.environment.tasks,
            split=trajectory.task.split,
            seed=trajectory.environment.seed,
            limit_s=self.tool_seconds,
        )
        return made if made is not None and made.id == trajectory.task.id else None

    def gold_answer(self, task: Task) -> str | None:
        """What the environment holds to be the right answer; None where a task has none.

        Raises:
            EnvironmentFailure: the environment raised, or took longer than the experiment allows.
        """
        return gold_of(self.environment, task, limit_s=self.tool_seconds)

    def demonstrator(self, noise: float) -> Callable[[Task, int], Script]:
        """A scripted demonstrator of the environment's tasks.

        Raises:
            ExperimentError: the environment has none.
        """

        def demonstrate(task: Task, seed: int) -> Script:
            return script_of(self.environment, task, seed=seed, noise=noise, limit_s=self.tool_seconds)

        return demonstrate

    @property
    def max_tokens(self) -> int:
        """Of a rollout's context."""
        return self.experiment.environment.collector_limits.tokens

    def engine_spec(self, stage: Stage, *, seed: int, initial: Weights | None = None) -> EngineSpec:
        """What to ask the engine for."""
        policy, limit = self.experiment.policy, self.max_tokens
        spec = EngineSpec(
            optimizer=stage.optimizer,
            machine=self.machine,
            initial=initial,
            seed=seed,
            vocabulary=self.vocabulary,
            max_context=limit + room_for(stage.algorithm.plan),
        )
        if isinstance(policy, RecurrentPolicy):
            return replace(spec, options={"hidden": policy.hidden, "kind": policy.kind})
        assert self.model is not None
        lora = policy.weights if isinstance(policy.weights, Lora) else None
        weights = FullWeights() if lora is None else LoraWeights(rank=lora.rank, alpha=lora.alpha)
        return replace(spec, model=str(self.model.path), weights=weights)


def prepare(loaded: Loaded, *, start: str | None = None, source: Mapping[str, str] | None = None) -> Prepared:
    """Resolve every name of the experiment, freeze the protocol and refuse what cannot work.

    Args:
        loaded: the experiment.
        start: digest of the weights that ``policy.from`` named when the run began; looked up when None.
        source: digests of the environment's code when the run began; made of its files when None.

    Raises:
        ExperimentError: a layer is missing something or contradicts another.
        ModelError: the model cannot be had.
        StorageError: ``policy.from`` names no run with weights.
    """
    experiment = loaded.experiment
    environment = loaded.environment or resolve_environment(_located(experiment.environment.name, loaded.folder))
    check_declared(environment)
    check_assurance(environment, experiment)
    tools = _tool_names(environment, experiment.environment.options, limit_s=_limit(experiment))
    experiment = with_discount(experiment, environment=environment, tools=tools)
    loaded = _with_tasks(replace(loaded, experiment=experiment), environment)
    stages = stages_of(experiment)
    _check_stages(stages, experiment, environment, tools=tools)
    model = _model(loaded)
    renderer = _renderer(experiment, environment, tools=tools, model=model)
    agent = own_agent(experiment.policy)
    outsider = outsider_of(loaded, stages, environment=environment)
    if start is None and experiment.policy.start is not None:
        start = start_digest(loaded.folder / experiment.policy.start)
    identity = Identity(
        weights=_weights_identity(experiment, model),
        tokenizer=renderer.digests.tokenizer,
        template=renderer.digests.template,
        parser=renderer.digests.parser,
        **history_of(experiment.policy, acting(agent, outsider, renderer)),
        start=start,
    )
    names, source = stored_names(experiment), source_of(environment) if source is None else source
    protocol = freeze(
        experiment,
        environment=environment,
        algorithm_id=stages[-1].method,
        algorithm=stages[-1].algorithm,
        identity=identity,
        tools=tools,
        tasks_digest=loaded.tasks_digest,
        source=source,
        stored=dict(zip(names, stored_heads(names, loaded.folder), strict=True)),
        stages=[stage.to_json() for stage in stages] if experiment.stages else (),
        libraries=_versions(),
    )
    provenance = Provenance(
        protocol=protocol.hash,
        tokenizer=identity.tokenizer,
        template=identity.template,
        parser=identity.parser,
        weights=identity.weights,
        history=identity.history,
    )
    prepared = Prepared(
        loaded=loaded,
        environment=environment,
        renderer=renderer,
        stages=stages,
        rules=stages[-1].rules,
        protocol=protocol,
        machine=resolve_machine(
            loaded.machine,
            small=model is None,
            contexts=_contexts(experiment, stages),
        ),
        agent=agent,
        setting=_setting(experiment, environment, stages=stages, renderer=renderer, agent=agent, provenance=provenance),
        model=model,
        vocabulary=renderer.vocab_size if isinstance(renderer, SymbolRenderer) else 0,
        start=start,
        source=source,
        outsider=outsider,
    )
    _check_tasks(prepared)
    return prepared


def _check_stages(
    stages: Sequence[Stage], experiment: Experiment, environment: type[Environment], *, tools: Sequence[str]
) -> None:
    """Refuse a stage that cannot work with this environment and this policy."""
    check_history(experiment, stages, environment=environment)
    is_outside = isinstance(experiment.policy, HfPolicy) and isinstance(experiment.policy.agent, OutsideAgentLayer)
    if not tools and not is_outside and experiment.policy.decoding.grammar == "tools":
        raise ExperimentError(
            f"policy.decoding.grammar = `tools`: environment `{environment.__name__}` has no tool, so no turn could be "
            "written; mark its methods with @kifu.tool, or leave the grammar out"
        )
    check_memory(experiment, tools, environment=environment)
    for stage in stages:
        with in_stage(stage.name, experiment):
            if stage.fits is None:
                check_paid(experiment.model_copy(update={"credit": stage.credit}), stage.algorithm, environment)
            check_values(stage.algorithm.plan, experiment, name=stage.method)
            check_budget(stage)
            check_temperatures(stage, experiment)
            check_verifiable(stage, experiment, environment)
            check_stage(stage, experiment)
            check_refreshable(stage, environment)
            check_rollouts(
                stage.algorithm.plan,
                size=stage.update.group_size,
                environment=environment,
                name=stage.method,
            )
            if stage.demonstrations is not None:  # asked now, so that nothing was written when there is none
                limit_s = _limit(experiment)
                script_of(
                    environment, demonstration_task(environment, 0, limit_s=limit_s), seed=0, noise=0.0, limit_s=limit_s
                )


def _contexts(experiment: Experiment, stages: Sequence[Stage]) -> int:
    """Rollouts under way at once: those of the widest step, or an evaluation's as far as that costs little memory."""
    evaluation = experiment.evaluation
    return max(
        max(stage.update.prompts_per_step * stage.update.group_size for stage in stages),
        min(evaluation.tasks * evaluation.tries, _EVALUATED_AT_ONCE),
    )


def _check_tasks(prepared: Prepared) -> None:
    """Make tasks to train and to evaluate on, so that a run does not end for want of them."""
    layer, update = prepared.experiment.evaluation, prepared.experiment.update
    with asking(f"environment `{prepared.environment.__name__}`, listing its tasks"):
        check_tasks(
            prepared.task_source(0),
            split=layer.split,
            evaluated=layer.tasks,
            trained=update.steps * update.prompts_per_step,
        )
        first = prepared.task_source(0).training(0)
    for stage in prepared.stages:
        check_scored(stage, prepared.experiment, environment=prepared.environment, task=first)


def _located(name: str, folder: Path) -> str:
    """The name of an environment, relative files in it taken from the experiment's folder."""
    return "@".join(_from_folder(part, folder) for part in name.split("@"))


def _from_folder(part: str, folder: Path) -> str:
    found = re.fullmatch(r"(.+?\.(?:jsonl|py|toml))(:.*)?", part)
    if found is None or not (folder / found[1]).is_file():
        return part
    return f"{(folder / found[1]).resolve()}{found[2] or ''}"


def _with_tasks(loaded: Loaded, environment: type[Environment]) -> Loaded:
    """The experiment with the tasks of its environment's file, where they come from one."""
    rows: tuple[Task, ...] = getattr(environment, "rows", ())
    if loaded.tasks or not rows:
        return loaded
    tasks = hold_out(rows, split=loaded.experiment.evaluation.split)
    return replace(loaded, tasks=tasks, tasks_digest=tasks_digest(tasks))


def _model(loaded: Loaded) -> ModelFolder | None:
    policy = loaded.experiment.policy
    if not isinstance(policy, HfPolicy):
        return None
    local = loaded.folder / policy.model
    return pull(str(local.resolve()) if local.is_dir() else policy.model)


def _limit(experiment: Experiment) -> float:
    """Seconds an environment may take for one answer."""
    return experiment.environment.collector_limits.tool_seconds


def _tool_names(environment: type[Environment], options: Mapping[str, Any], *, limit_s: float) -> tuple[str, ...]:
    """Tools of an instance before its first reset.

    Raises:
        ExperimentError: the constructor does not take the options.
    """

    def make() -> Environment:
        try:
            return environment(**options)
        except TypeError as cause:
            if not options:
                raise
            raise ExperimentError(f"environment.options do not fit `{environment.__name__}`: {cause}") from cause

    with questions(f"environment `{environment.__name__}`", limit_s=limit_s) as world:
        made = world.ask("making an instance", make)
        try:
            return world.ask("listing its tools", lambda: tool_names(made))
        finally:
            world.leave(made.close)


def _renderer(
    experiment: Experiment, environment: type[Environment], *, tools: tuple[str, ...], model: ModelFolder | None
) -> Renderer:
    policy = experiment.policy
    if isinstance(policy, RecurrentPolicy):
        if not environment.vocabulary:
            raise ExperimentError(
                f"policy.engine = `recurrent` reads symbols, and environment `{experiment.environment.name}` declares "
                "no vocabulary; use engine = `hf`"
            )
        return SymbolRenderer(actions=tools, vocabulary=environment.vocabulary)
    assert model is not None
    renderer = load_renderer(Path(model.path), dialect=DIALECTS[policy.dialect], thinking=policy.thinking or None)
    if tools and not renderer.habits.continues:
        raise ExperimentError(
            f"policy.model: the chat template of {model.path} rewrites the prompt once the policy has answered, so "
            f"tool results of `{experiment.environment.name}` cannot be appended exactly; use another model "
            "or template. Tasks of a single message work with it."
        )
    return renderer


def _weights_identity(experiment: Experiment, model: ModelFolder | None) -> str:
    if model is not None:
        return model.digests.weights
    assert isinstance(experiment.policy, RecurrentPolicy)
    return f"drawn from the run's seed: {experiment.policy.kind}, hidden {experiment.policy.hidden}"


def _setting(
    experiment: Experiment,
    environment: type[Environment],
    *,
    stages: Sequence[Stage],
    renderer: Renderer,
    agent: Agent,
    provenance: Provenance,
) -> Setting:
    layer, policy = experiment.environment, experiment.policy
    decoding, limits = policy.decoding, layer.collector_limits
    prompt = policy.prompt if isinstance(policy, HfPolicy) else None
    return Setting(
        environment=partial(environment, **layer.options) if layer.options else environment,
        renderer=renderer,
        agent=agent,
        sampling=Sampling(
            temperature=decoding.temperatures[0], top_p=decoding.top_p, top_k=decoding.top_k, min_p=decoding.min_p
        ),
        max_new_tokens=decoding.max_new_tokens,
        constrained=decoding.grammar == "tools",
        limits=Limits(
            task_turns=layer.task_limits.turns,
            turns=limits.turns,
            tokens=limits.tokens,
            seconds=limits.seconds,
            tool_seconds=limits.tool_seconds,
        ),
        provenance=provenance,
        instructions=prompt.instructions if prompt else None,
        trust=prompt.trust_form if prompt else None,
        history=history_rule(policy),
        examples=()
        if not isinstance(policy, HfPolicy)
        else worked_examples(environment, policy.prompt, DIALECTS[policy.dialect], limit_s=_limit(experiment)),
        records_value=isinstance(policy, RecurrentPolicy),
        isolation=layer.isolation,
        takes_in_process=layer.assurance == "in_process",
        takes_judged=not any(stage.algorithm.plan.verifiable for stage in stages),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
