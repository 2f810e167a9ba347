"""Whether policy and environment can give a method the facts it asks for, before anything is written."""

from typing import assert_never

from kifu.algorithms import Plan
from kifu.credit.branching import Allocated, EntropyBranching, Independent, PreMonitored, TreeExpansion
from kifu.credit.scored import GoldScores, NoScores
from kifu.envs import Environment, Task
from kifu.envs.questions import asked
from kifu.errors import ExperimentError
from kifu.records.outcome import JUDGED
from kifu.rollout import check_branchable
from kifu.training.experiment.layers import Experiment, HfPolicy, RecurrentPolicy
from kifu.training.experiment.stages import Stage

_ROOM = 256
"""Tokens of a text that a model reads behind a context of full length, to tell a fact."""


def room_for(plan: Plan) -> int:
    """Tokens that may stand behind the longest context of a rollout when its facts are told."""
    return 0 if isinstance(plan.scores, NoScores) else _ROOM


def check_values(plan: Plan, experiment: Experiment, *, name: str) -> None:
    """Whether the engine values what the method reads values of.

    Raises:
        ExperimentError: it does not; the message says what does.
    """
    policy = experiment.policy
    if plan.token_values == "needed" and not isinstance(policy, RecurrentPolicy):
        raise ExperimentError(
            f"credit.algorithm = `{name}` needs V before every sampled token, and the engine `{policy.engine}` has no "
            "critic; use engine = `recurrent`, whose turns are one token, so that the value before a turn is the value "
            "before its token"
        )


def check_assurance(environment: type[Environment], experiment: Experiment) -> None:
    """Whether the experiment takes the kind of verdict that the environment makes.

    Raises:
        ExperimentError: it does not say so.
    """
    if environment.capabilities.in_process and experiment.environment.assurance != "in_process":
        raise ExperimentError(
            f"environment.assurance = `apart`, and environment `{experiment.environment.name}` is judged by tests that "
            "run in the interpreter of what the policy wrote, which can read what they expect and be paid for it. Look "
            'at `kifu envs lint TASK`; set assurance = "in_process" in [environment] to train on such verdicts'
        )


def check_verifiable(stage: Stage, experiment: Experiment, environment: type[Environment]) -> None:
    """Whether nothing but what a program checked pays, where the method is for that alone.

    Raises:
        ExperimentError: something learned or judged by a model would pay; the message names the field.
    """
    if not stage.algorithm.plan.verifiable:
        return
    name, credit, world = stage.method, stage.credit, experiment.environment.name
    if credit.reward_model is not None:
        raise _not_verifiable(name, "credit.reward_model", found="a reward model", advice="drop it, or use rlhf_ppo")
    for signal, layer in credit.signals.items():
        found = f"a learned signal of type `{layer.type}`"
        raise _not_verifiable(name, f"credit.signals.{signal}", found=found, advice="drop it, or use grpo or ppo")
    if environment.capabilities.verify == JUDGED:
        raise _not_verifiable(
            name,
            f"environment `{world}`",
            found="a verdict that is a model's judgement (Capabilities.verify = 'judge')",
            advice="give it a verifier that is a program, or use grpo or ppo",
        )
    for component in credit.components:
        declared = environment.components.get(component)
        if declared is not None and not declared.is_checkable:
            raise _not_verifiable(
                name,
                f"credit.components.{component}",
                found=f"labels of {declared.labeller} that nobody else can check (is_checkable = false)",
                advice="drop its weight, or use grpo or ppo",
            )


def _not_verifiable(name: str, field: str, *, found: str, advice: str) -> ExperimentError:
    return ExperimentError(
        f"{field}: credit.algorithm = `{name}` is paid by what a program checks and by nothing else, found {found}; "
        f"{advice}"
    )


def check_budget(stage: Stage) -> None:
    """Whether the budget of a method that allocates rollouts is that of the step.

    Raises:
        ExperimentError: it is another one.
    """
    rollout, update = stage.algorithm.plan.rollout, stage.update
    if isinstance(rollout, Allocated) and rollout.budget != update.prompts_per_step * update.group_size:
        raise ExperimentError(
            f"credit.algorithm = `{stage.method}` has a budget of {rollout.budget} rollouts a step, and "
            f"update.prompts_per_step x update.group_size is {update.prompts_per_step} x {update.group_size} = "
            f"{update.prompts_per_step * update.group_size}; set credit.options.budget or these so that they agree"
        )


def check_temperatures(stage: Stage, experiment: Experiment) -> None:
    """Whether every temperature of a list is taken by a member of a group.

    Raises:
        ExperimentError: groups are smaller than the list.
    """
    listed, size = experiment.policy.decoding.temperatures, stage.update.group_size
    if len(listed) > size and stage.demonstrations is None and stage.fits is None and stage.stored is None:
        raise ExperimentError(
            f"policy.decoding.temperature lists {len(listed)}, which the members of a group take in turn, and "
            f"update.group_size is {size}; raise it to {len(listed)} or give one temperature"
        )


def check_scored(stage: Stage, experiment: Experiment, *, environment: type[Environment], task: Task) -> None:
    """Whether the facts that a model tells of finished rollouts can be had.

    Args:
        stage: with its method.
        experiment: the six layers.
        environment: declares the gold answers.
        task: the first one to train on.

    Raises:
        ExperimentError: they cannot; the message says what is missing.
    """
    scores, name, policy = stage.algorithm.plan.scores, stage.method, experiment.policy
    if isinstance(scores, NoScores):
        return
    if not isinstance(policy, HfPolicy):
        raise ExperimentError(
            f"credit.algorithm = `{name}` lets the model read text that no rollout held, and the engine "
            f"`{policy.engine}` reads symbols; use engine = `hf`"
        )
    if not isinstance(scores, GoldScores):
        return
    found = gold_of(environment, task, limit_s=experiment.environment.collector_limits.tool_seconds)
    if found is None or not found:
        raise ExperimentError(
            f"credit.algorithm = `{name}` scores the gold answer before every turn, and environment "
            f"`{experiment.environment.name}` has none for task {task.id}; define `gold_answer(task)`, or choose a "
            "method that does without, such as grpo"
        )


def gold_of(environment: type[Environment], task: Task, *, limit_s: float) -> str | None:
    """The environment's gold answer; None where a task has none.

    Args:
        environment: tells it.
        task: whose answer.
        limit_s: seconds that may take.

    Raises:
        EnvironmentFailure: it raised, or took longer.
    """
    return asked(
        f"environment `{environment.__name__}`",
        f"asking for the gold answer of {task.id}",
        lambda: environment.gold_answer(task),
        limit_s=limit_s,
    )


def check_refreshable(stage: Stage, environment: type[Environment]) -> None:
    """Whether the states of stored records can be reached again, where the stage samples in them.

    Raises:
        ExperimentError: they cannot, or nobody could tell.
    """
    if not stage.refreshes:
        return
    check_branchable(environment)
    if not environment.capabilities.deterministic:
        raise ExperimentError(
            f"environment `{environment.id or environment.__name__}`: credit.algorithm = `{stage.method}` samples in "
            "states of stored records, which are reached by their actions, and the environment is not deterministic; "
            "set credit.options.negatives = 'recorded'"
        )


def check_rollouts(plan: Plan, *, size: int, environment: type[Environment], name: str) -> None:
    """Whether groups of this size can grow as the method wants, in this environment.

    Raises:
        ExperimentError: they cannot; the message says what to change.
    """
    rollout = plan.rollout
    match rollout:
        case Independent():
            return
        case Allocated():
            pass
        case EntropyBranching(start=start):
            fewest = 1 if isinstance(start, PreMonitored) else start.count
            if size <= fewest:
                raise ExperimentError(
                    f"credit.algorithm = `{name}` begins a group with {fewest} whole rollouts and branches the rest: "
                    f"update.group_size must be larger, found {size}"
                )
        case TreeExpansion():
            if size != rollout.total:
                raise ExperimentError(
                    f"credit.algorithm = `{name}` grows groups of {rollout.total} rollouts ({rollout.chains} at first, "
                    f"{rollout.rounds} rounds); found update.group_size = {size}. Change it or the method's options"
                )
        case _ as unreachable:
            assert_never(unreachable)
    check_branchable(environment)
