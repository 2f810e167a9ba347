"""From a loaded experiment to everything a run needs short of weights in memory and a folder on disk."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kifu.agents import AGENTS, Agent
from kifu.algorithms import Algorithm, build_algorithm
from kifu.credit import Bootstrap, CutTreatment, Exclude, StoredPairs, StoredTrajectories, Terminal
from kifu.credit.reading import RewardRules
from kifu.envs import Environment, Task
from kifu.envs.declared import asking, check_declared, tool_names
from kifu.envs.registry import resolve_environment
from kifu.errors import ExperimentError
from kifu.models import ModelFolder, pull
from kifu.policy import AdamW, EngineSpec, FullWeights, LoraWeights, Machine, Weights
from kifu.records import Provenance, Sampling, ToolCall
from kifu.render import DIALECTS, Dialect, Message, Renderer, SymbolRenderer, load_renderer
from kifu.rollout import Limits, Script, Setting, tool_views
from kifu.training.branching import check_rollouts
from kifu.training.components import check_paid
from kifu.training.experiment import Loaded
from kifu.training.freeze import Identity, Protocol, freeze
from kifu.training.layers import Demonstrations, Experiment, HfPolicy, Lora, Optimizer, RecurrentPolicy, Stored
from kifu.training.machine import resolve_machine
from kifu.training.starting import start_digest
from kifu.training.stored import stored_heads, stored_layer
from kifu.training.tasks import (
    GeneratedTasks,
    ListedTasks,
    TaskSource,
    demonstration_task,
    hold_out,
    parse_splits,
    tasks_digest,
)

AGENT = "tool_calling"
_EVALUATED_AT_ONCE = 64
_LIBRARIES = ("kifu", "numpy", "torch", "transformers", "tokenizers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive steps with one algorithm and one optimizer."""

    name: str
    algorithm: Algorithm
    optimizer: AdamW
    first: int
    steps: int
    demonstrations: Demonstrations | None = None
    """Scripted traces instead of rollouts."""
    stored: Stored | None = None
    """Records of other runs instead of rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A checked and frozen experiment."""

    loaded: Loaded
    environment: type[Environment]
    renderer: Renderer
    stages: tuple[Stage, ...]
    rules: RewardRules
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

    @property
    def experiment(self) -> Experiment:
        """The six layers."""
        return self.loaded.experiment

    def evaluation_setting(self) -> Setting:
        """As for collecting, decoded as layer 6 says."""
        if self.experiment.evaluation.decoding == "sampled":
            return self.setting
        sampling = replace(self.setting.sampling, temperature=None, top_p=None, top_k=None, min_p=None)
        return replace(self.setting, sampling=sampling)

    def task_source(self, seed: int) -> TaskSource:
        """Tasks by place for a run with this seed."""
        if self.loaded.tasks:
            return ListedTasks(tasks=self.loaded.tasks, seed=seed)
        return GeneratedTasks(
            generate=self.environment.tasks, ranges=parse_splits(self.experiment.environment.splits), seed=seed
        )

    def demonstrator(self, noise: float) -> Callable[[Task, int], Script]:
        """A scripted demonstrator of the environment's tasks.

        Raises:
            ExperimentError: the environment has none.
        """

        def demonstrate(task: Task, seed: int) -> Script:
            return _script(self.environment, task, seed=seed, noise=noise)

        return demonstrate

    def engine_spec(self, stage: Stage, *, seed: int, initial: Weights | None = None) -> EngineSpec:
        """What to ask the engine for."""
        policy = self.experiment.policy
        limit = self.experiment.environment.collector_limits.tokens
        spec = EngineSpec(
            optimizer=stage.optimizer,
            machine=self.machine,
            initial=initial,
            seed=seed,
            vocabulary=self.vocabulary,
            max_context=limit or 1024,
        )
        if isinstance(policy, RecurrentPolicy):
            return replace(spec, options={"hidden": policy.hidden, "kind": policy.kind})
        assert self.model is not None
        lora = policy.weights if isinstance(policy.weights, Lora) else None
        weights = FullWeights() if lora is None else LoraWeights(rank=lora.rank, alpha=lora.alpha)
        return replace(spec, model=str(self.model.path), weights=weights)


def prepare(loaded: Loaded, *, start: str | None = None) -> Prepared:
    """Resolve every name of the experiment, freeze the protocol and refuse what cannot work.

    Args:
        loaded: the experiment.
        start: digest of the weights that ``policy.from`` named when the run began; looked up when None.

    Raises:
        ExperimentError: a layer is missing something or contradicts another.
        ModelError: the model cannot be had.
        StorageError: ``policy.from`` names no run with weights.
    """
    experiment = loaded.experiment
    environment = loaded.environment or resolve_environment(_located(experiment.environment.name, loaded.folder))
    check_declared(environment)
    loaded = _with_tasks(loaded, environment)
    stages = _stages(experiment)
    check_paid(experiment, stages[-1].algorithm, environment)
    for stage in stages:
        _check_stage(stage, experiment)
        check_rollouts(
            stage.algorithm.plan,
            size=experiment.update.group_size,
            environment=environment,
            name=experiment.credit.algorithm,
        )
        if stage.demonstrations is not None:  # asked now, so that nothing was written when there is none
            _script(environment, demonstration_task(environment, 0), seed=0, noise=0.0)
    model = _model(loaded)
    tools = _tool_names(environment, experiment.environment.options)
    renderer = _renderer(experiment, environment, tools=tools, model=model)
    agent = AGENTS[AGENT]()
    if start is None and experiment.policy.start is not None:
        start = start_digest(loaded.folder / experiment.policy.start)
    identity = Identity(
        weights=_weights_identity(experiment, model),
        tokenizer=renderer.digests.tokenizer,
        template=renderer.digests.template,
        parser=renderer.digests.parser,
        controller=agent.id,
        history=str(renderer.digests.extra.get("history", "append/1")),
        start=start,
    )
    protocol = freeze(
        experiment,
        environment=environment,
        algorithm_id=experiment.credit.algorithm,
        algorithm=stages[-1].algorithm,
        identity=identity,
        tools=tools,
        tasks_digest=loaded.tasks_digest,
        stored=_stored_heads(experiment, loaded.folder),
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
    cuts: dict[str, CutTreatment] = {"exclude": Exclude(), "terminal": Terminal(), "bootstrap": Bootstrap()}
    prepared = Prepared(
        loaded=loaded,
        environment=environment,
        renderer=renderer,
        stages=stages,
        rules=RewardRules(
            gamma=experiment.credit.gamma,
            components=experiment.credit.components,
            shaping=experiment.credit.shaping.type == "potential",
            cut=cuts[experiment.environment.on_truncation],
        ),
        protocol=protocol,
        machine=resolve_machine(
            loaded.machine,
            small=model is None,
            contexts=_contexts(experiment),
        ),
        agent=agent,
        setting=_setting(experiment, environment, renderer=renderer, agent=agent, provenance=provenance),
        model=model,
        vocabulary=renderer.vocab_size if isinstance(renderer, SymbolRenderer) else 0,
        start=start,
    )
    _check_tasks(prepared)
    return prepared


def _contexts(experiment: Experiment) -> int:
    """Rollouts under way at once: a step's, or an evaluation's as far as that costs little memory."""
    update, evaluation = experiment.update, experiment.evaluation
    return max(
        update.prompts_per_step * update.group_size, min(evaluation.tasks * evaluation.tries, _EVALUATED_AT_ONCE)
    )


def _stored_heads(experiment: Experiment, folder: Path) -> list[str]:
    """What the records of other runs are, by digest."""
    data = stored_layer(experiment)
    return [] if data is None else stored_heads(data, folder)


def _check_tasks(prepared: Prepared) -> None:
    """Make the first task to train on and the last one to evaluate on, so that a run does not end for want of them."""
    source, layer = prepared.task_source(0), prepared.experiment.evaluation
    with asking(f"environment `{prepared.environment.__name__}`, listing its tasks"):
        source.training(0)
        source.evaluation(layer.split, layer.tasks - 1)


def _located(name: str, folder: Path) -> str:
    """The name of an environment, relative files in it taken from the experiment's folder."""
    return "@".join(_from_folder(part, folder) for part in name.split("@"))


def _from_folder(part: str, folder: Path) -> str:
    found = re.fullmatch(r"(.+?\.(?:jsonl|py))(:.*)?", part)
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


def _stages(experiment: Experiment) -> tuple[Stage, ...]:
    update, warm = experiment.update, experiment.update.warm_start
    stages: list[Stage] = []
    if isinstance(warm, Demonstrations):
        stages.append(
            Stage(
                name="warm start",
                algorithm=build_algorithm("sft"),
                optimizer=_adamw(warm.optimizer, clip=update.clip_norm, steps=warm.steps),
                first=0,
                steps=warm.steps,
                demonstrations=warm,
            )
        )
    algorithm = build_algorithm(experiment.credit.algorithm, experiment.credit.options)
    optimizer = _adamw(update.optimizer, clip=update.clip_norm, steps=update.steps * algorithm.plan.epochs)
    first = sum(stage.steps for stage in stages)
    stages.append(
        Stage(
            name="train",
            algorithm=algorithm,
            optimizer=optimizer,
            first=first,
            steps=update.steps,
            stored=update.data if isinstance(update.data, Stored) else None,
        )
    )
    return tuple(stages)


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


def _check_stage(stage: Stage, experiment: Experiment) -> None:
    plan, update = stage.algorithm.plan, experiment.update
    name = experiment.credit.algorithm
    if stage.demonstrations is None and plan.demonstrations and stage.stored is None:
        raise ExperimentError(
            f"credit.algorithm = `{name}` trains on demonstrations, and [update] collects rollouts; "
            "put it into update.warm_start, name records in update.data, or choose a method that learns from rollouts"
        )
    is_offline = plan.demonstrations or isinstance(plan.data, StoredTrajectories | StoredPairs)
    if stage.demonstrations is None and is_offline is not (stage.stored is not None):
        raise ExperimentError(
            f"credit.algorithm = `{name}` learns from records of finished runs; "
            "name them: update.data = { type = 'stored', runs = ['runs/…'] }"
            if is_offline
            else f"credit.algorithm = `{name}` learns from its own rollouts, and update.data names records of others; "
            "choose a method that learns offline: sft, offline_awr, dpo"
        )
    has_model = experiment.credit.reward_model is not None
    if stage.demonstrations is None and plan.needs_reward_model is not has_model:
        raise ExperimentError(
            f"credit.algorithm = `{name}` learns from a reward model; name the runs it is fitted to: "
            "credit.reward_model = { runs = ['runs/…'] }"
            if plan.needs_reward_model
            else f"credit.algorithm = `{name}` does not look at credit.reward_model; drop it, or use rlhf_ppo"
        )
    if plan.needs_group and update.group_size < 2 and stage.demonstrations is None and stage.stored is None:
        raise ExperimentError(
            f"credit.algorithm = `{name}` compares attempts at one task: update.group_size must be at least 2, "
            f"found {update.group_size}"
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


def _model(loaded: Loaded) -> ModelFolder | None:
    policy = loaded.experiment.policy
    if not isinstance(policy, HfPolicy):
        return None
    local = loaded.folder / policy.model
    return pull(str(local.resolve()) if local.is_dir() else policy.model)


def _tool_names(environment: type[Environment], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Tools of an instance before its first reset.

    Raises:
        ExperimentError: the constructor does not take the options.
    """
    with asking(f"environment `{environment.__name__}`, making an instance"):
        try:
            world = environment(**options)
        except TypeError as cause:
            if not options:
                raise
            raise ExperimentError(f"environment.options do not fit `{environment.__name__}`: {cause}") from cause
    with asking(f"environment `{environment.__name__}`, listing its tools"):
        try:
            return tool_names(world)
        finally:
            world.close()


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
    return load_renderer(Path(model.path), dialect=DIALECTS[policy.dialect], thinking=policy.thinking or None)


def _weights_identity(experiment: Experiment, model: ModelFolder | None) -> str:
    if model is not None:
        return model.digests.weights
    assert isinstance(experiment.policy, RecurrentPolicy)
    return f"drawn from the run's seed: {experiment.policy.kind}, hidden {experiment.policy.hidden}"


def _setting(
    experiment: Experiment,
    environment: type[Environment],
    *,
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
            temperature=decoding.temperature, top_p=decoding.top_p, top_k=decoding.top_k, min_p=decoding.min_p
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
        examples=()
        if not isinstance(policy, HfPolicy)
        else _examples(environment, policy.prompt.examples, DIALECTS[policy.dialect]),
        records_value=isinstance(policy, RecurrentPolicy),
        isolation=layer.isolation,
    )


def _examples(environment: type[Environment], count: int, dialect: Dialect) -> tuple[Message, ...]:
    """Worked demonstrations, acted out in the environment so that the observations are its own."""
    found: list[Message] = []
    for index in range(count):
        task = demonstration_task(environment, index)
        world = environment()
        try:
            first = world.reset(task, task.seed)
            found.append(Message(role="user", content=first if isinstance(first, str) else first.text))
            for call in _script(environment, task, seed=task.seed, noise=0.0).calls:
                written = dialect.format_call(call, tool_views(world.tools()))
                found.append(Message(role="assistant", content=written))
                reply = world.step(call)
                text = reply if isinstance(reply, str) else getattr(reply, "text", None)
                if not isinstance(text, str):
                    raise ExperimentError("policy.prompt.examples needs an environment whose tools are not async")
                found.append(Message(role="tool", content=text))
            found.pop()  # nothing is shown after the last call of an episode
        finally:
            world.close()
    return tuple(found)


def _script(environment: type[Environment], task: Task, *, seed: int, noise: float) -> Script:
    try:
        with asking(f"environment `{environment.__name__}`, demonstrating task {task.id}"):
            calls = tuple(environment.demonstrate(task, seed=seed, noise=noise))
    except NotImplementedError as missing:
        raise ExperimentError(
            f"environment `{environment.__name__}` has no demonstrator; define `demonstrate(task, *, seed, noise)`, "
            "or do without examples and warm start"
        ) from missing
    shown = tuple(call for call in calls if isinstance(call, ToolCall))
    if len(shown) != len(calls):
        raise ExperimentError(f"the demonstrator of `{environment.__name__}` answers in text; only calls can be shown")
    return Script(calls=shown)


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
