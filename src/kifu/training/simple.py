"""Training and evaluating from Python without an experiment file: the same six layers are filled and frozen."""

import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from kifu.envs import Environment, Task, class_tools
from kifu.envs.files import LOADED_FROM_FILE
from kifu.envs.registry import resolve_environment
from kifu.envs.source import users_file
from kifu.envs.suites.jsonl import RewardFunction, questions
from kifu.errors import UsageError
from kifu.evaluation import EvaluationSummary
from kifu.gateway import Function
from kifu.gateway.outside import AgentFunction
from kifu.training.experiment.arguments import (
    check_count,
    check_reward,
    check_seed,
    listed_tasks,
    model_name,
    path_of,
    text_of,
)
from kifu.training.experiment.discount import UNDISCOUNTED
from kifu.training.experiment.reading import VERSION, Loaded, Table, merge, parse_experiment
from kifu.training.experiment.tasks import hold_out, tasks_digest
from kifu.training.inspection import evaluate as evaluation
from kifu.training.run import Result
from kifu.training.run import train as run_experiment


def train(
    environment: type[Environment] | str | None = None,
    /,
    *,
    tasks: str | Path | Sequence[Task] | None = None,
    reward: RewardFunction | str | None = None,
    agent: AgentFunction | str | None = None,
    model: str | Path = "smollm2-135m",
    algorithm: str = "grpo",
    out: str | Path | None = None,
    seed: int = 0,
    quiet: bool = False,
    **overrides: Any,  # noqa: ANN401 (values of the experiment file)
) -> Result:
    """Train a policy in an environment, or on questions with a reward function.

    What nobody states is chosen for a first try and frozen in ``protocol.toml``: 12 steps of 6 tasks and 8 attempts, a
    LoRA adapter of rank 16 at a rate of 3e-4 (3e-3 for ``recurrent``), 64 tokens a turn, no discount.

    Args:
        environment: a class, or a name as in ``[environment] name``.
        tasks: path of a JSONL file of questions, or tasks of the environment; None takes the environment's own.
        reward: for a file of questions: ``exact``, ``numeric``, ``regex``, or a function of answer and task.
        agent: acts instead of kifu's own and is heard through a gateway: a function of task and endpoint, see
            `kifu.agent`, or ``file.py:function`` that takes a dictionary and knows nothing of kifu.
        model: a name, folder or hub id; ``recurrent`` is the small symbolic policy.
        algorithm: a name in `kifu.algorithms.ALGORITHMS`.
        out: run folder; ``runs/<name>-seed<seed>`` when None.
        seed: of the run.
        quiet: show nothing.
        **overrides: fields of the experiment file: ``update={"steps": 4}`` or ``**{"update.steps": 4}``. A class or
            name as ``environment=`` is the environment itself.

    Raises:
        UsageError: an argument is not what it must be.
        ExperimentError: a layer is missing something or contradicts another.
    """
    root = None if out is None else path_of(out, where="kifu.train: out")
    check_seed(seed, where="kifu.train")
    if environment is None and not isinstance(overrides.get("environment"), Mapping):
        environment = overrides.pop("environment", None)
    loaded = fill(
        environment, tasks=tasks, reward=reward, agent=agent, model=model, algorithm=algorithm, overrides=overrides
    )
    return run_experiment(loaded, out=root, seed=seed, quiet=quiet)


def evaluate(
    run: str | Path,
    *,
    checkpoint: str | int = "last",
    split: str | None = None,
    tasks: int | None = None,
    tries: int | None = None,
    decoding: Literal["greedy", "sampled"] | None = None,
    audit_safety: bool = False,
    best_of: int | None = None,
    judge: str | Path | None = None,
    keep: bool = True,
) -> EvaluationSummary:
    """Evaluate a kept version of a run; what is not given is what layer 6 of the run says.

    Args:
        run: the run folder.
        checkpoint: number of a version, ``first`` or ``last``.
        split: whose tasks.
        tasks: how many.
        tries: attempts at each task.
        decoding: ``greedy``, or ``sampled`` as rollouts are.
        audit_safety: whether the summary says what was done to the world.
        best_of: attempts at a task that ``judge`` chooses among, instead of ``tries``.
        judge: a run folder with a reward model, or ``file.py:function`` of a
            `kifu.training.inspection.judges.Candidate`.
        keep: write the rollouts and the summary to ``RUN/evaluations/NNNN/``.

    Raises:
        UsageError: an argument is not what it must be.
        StorageError: no run there, or the version is not kept.
    """
    where = "kifu.evaluate"
    root = path_of(run, where=f"{where}: run")
    check_count(tasks, name="tasks", where=where)
    check_count(tries, name="tries", where=where)
    check_count(best_of, name="best_of", where=where)
    if isinstance(checkpoint, bool) or not isinstance(checkpoint, int | str):
        raise UsageError(f"{where}: checkpoint is {checkpoint!r:.100}, expected a version's number, first or last")
    if split is not None:
        text_of(split, name="split", where=where, expected="the name of one of the run's splits")
    if decoding not in (None, "greedy", "sampled"):
        raise UsageError(f"{where}: decoding is {decoding!r:.100}, expected greedy, sampled or None")
    wanted = evaluation.Evaluation(
        checkpoint=checkpoint,
        split=split,
        tasks=tasks,
        tries=tries,
        decoding=decoding,
        audit_safety=audit_safety,
        best_of=best_of,
        judge=None if judge is None else str(path_of(judge, where=f"{where}: judge")),
    )
    return evaluation.evaluate(root, wanted, keep=keep)


def fill(
    environment: type[Environment] | str | None = None,
    *,
    tasks: str | Path | Sequence[Task] | None = None,
    reward: RewardFunction | str | None = None,
    agent: AgentFunction | str | None = None,
    model: str | Path = "smollm2-135m",
    algorithm: str = "grpo",
    overrides: Mapping[str, Any] | None = None,
) -> Loaded:
    """The experiment that `train` runs, with what the environment does not declare filled from its docstrings.

    Raises:
        UsageError: neither an environment nor a file of questions, or both.
        ExperimentError: an override names no field.
    """
    where = "kifu.train"
    model = model_name(model, where=where)
    known = "a name from `kifu algorithms`"
    algorithm = text_of(algorithm, name="algorithm", where=where, expected=known)
    check_reward(reward, where=where)
    given = None if tasks is None or isinstance(tasks, str | os.PathLike) else listed_tasks(tasks, where=where)
    cls, name = _environment(environment, tasks, reward)
    listed: tuple[Task, ...] = getattr(cls, "rows", ()) if given is None else given
    listed = hold_out(listed)
    table: Table = {
        "kifu": VERSION,
        "environment": {
            "name": name,
            "on_truncation": "exclude" if class_tools(cls) else "terminal",  # a cut answer is judged as it stands
            **_described(cls, reward),
            **({} if listed else {"splits": _SPLITS}),
        },
        "policy": {**_policy(model), **({} if agent is None else {"agent": _agent(agent, where=where)})},
        "credit": {"algorithm": algorithm, "gamma": UNDISCOUNTED},
        "update": {
            "steps": 12,
            "prompts_per_step": 6,
            "group_size": 8,
            "optimizer": {"learning_rate": 3e-3 if model == "recurrent" else 3e-4},
        },
        "evaluation": {"tasks": _evaluated(listed)},
    }
    for key, value in (overrides or {}).items():
        for part in reversed(key.split(".")):
            value = {part: value}
        table = merge(table, value)
    loaded = parse_experiment(table, name=_slug(cls), folder=Path.cwd(), where=where)
    loaded = replace(loaded, environment=cls, tasks=listed, tasks_digest=tasks_digest(listed) if listed else None)
    if agent is None or isinstance(agent, str):
        return loaded
    return replace(loaded, agent=agent if isinstance(agent, Function) else Function(agent))


_SPLITS = {"train": "seed 0..", "held_out": "seed 5_000_000.."}


def _environment(
    environment: type[Environment] | str | None,
    tasks: str | Path | Sequence[Task] | None,
    reward: RewardFunction | str | None,
) -> tuple[type[Environment], str]:
    if isinstance(tasks, str | os.PathLike):
        if environment is not None:
            raise UsageError("kifu.train: found an environment and a file of questions; give one of them")
        path = path_of(tasks, where="kifu.train: tasks").resolve()
        if callable(reward):
            _refuse_while_loading(reward)
        rule = "" if reward is None else f"@{reward}" if isinstance(reward, str) else f"@{_import_name(reward)}"
        return questions(path, reward=reward), f"{path}{rule}"
    if environment is None:
        raise UsageError(
            "kifu.train: no environment; give a class, a built-in name, or tasks='questions.jsonl' with a reward"
        )
    if reward is not None:
        raise UsageError("kifu.train: a reward belongs to a file of questions; an environment pays through verify()")
    if isinstance(environment, str):
        return resolve_environment(environment), environment
    found: object = environment
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise UsageError(
            f"kifu.train: found {found!r:.100}, expected a class derived from kifu.Environment (the class, not "
            "an instance) or the name of one"
        )
    _refuse_while_loading(environment)
    return environment, _import_name(environment)


def _refuse_while_loading(item: Any) -> None:  # noqa: ANN401 (a class or function)
    """Refuse to train while a file is loaded because a run names something in it."""
    if item.__module__.startswith(LOADED_FROM_FILE):
        raise UsageError(
            f"{inspect.getfile(item)}: the file was loaded because a run names its `{item.__name__}`, and trains while "
            "it is loaded; put the call of kifu.train under `if __name__ == '__main__':`"
        )


def _import_name(item: Any) -> str:  # noqa: ANN401 (a class or function)
    """How the command line finds it again: ``module:name``, or ``file.py:name`` of the script or a module beside it."""
    module = item.__module__
    path = None if "." in module else users_file(sys.modules.get(module))  # a package's module needs its package
    return f"{path or module}:{item.__qualname__}"


def _described(cls: type[Environment], reward: RewardFunction | str | None) -> dict[str, str]:
    """Texts of layer 1 that the environment's facts leave open."""
    facts, name = cls.facts, cls.__name__
    tools = class_tools(cls)
    calls = ", ".join(f"{spec.name}({', '.join(_parameters(spec.parameters))})" for spec in tools)
    success = f"`{name}.verify` says so{_sentence(cls.verify)}"
    texts = {
        "decision_model": ("decision model", "tool call, POMDP" if tools else "one message, contextual bandit"),
        "state": ("state", f"attributes of `{name}`{_sentence(cls)}"),
        "initial_states": ("initial states", f"what `{name}.reset` makes of task and seed{_sentence(cls.reset)}"),
        "observations": ("observations", "what reset shows and the tools return"),
        "hidden": ("hidden", f"every attribute of `{name}` that no observation shows"),
        "action": ("actions", f"one call of {calls}" if calls else "one message"),
        "reset": ("reset, versions, seeds", f"reset(task, seed), version {cls.version}; randomness from the seed"),
        "success": ("success", success),
        "failure": ("failure", "every other end of the episode"),
        "reward": ("reward", "the verdict, paid once at the end"),
        "irreversible": ("irreversible", "not declared"),
    }
    found = {field: text for field, (fact, text) in texts.items() if not facts.get(fact)}
    if callable(reward):
        found["reward"] = f"`{reward.__qualname__}` of the answer{_sentence(reward)}"
    elif reward is not None:
        found["reward"] = f"the verifier `{reward}` of the answer"
    return found


def _parameters(schema: Mapping[str, Any]) -> list[str]:
    return list(schema.get("properties", {}))


def _sentence(item: Any) -> str:  # noqa: ANN401 (a class or function)
    """Its docstring's first line, to stand behind a text; empty when it has none of its own."""
    doc = inspect.cleandoc(item.__doc__ or "").split("\n")[0].strip()
    inherited = getattr(Environment, getattr(item, "__name__", ""), None)
    return f": {doc}" if doc and item is not inherited else ""


def _policy(model: str) -> Table:
    if model == "recurrent":
        return {"engine": "recurrent"}
    return {"engine": "hf", "model": model, "weights": {"type": "lora"}}


def _agent(agent: AgentFunction | str, *, where: str) -> Table:
    if isinstance(agent, str):
        return {"type": "outside", "run": agent}
    if not callable(agent):
        raise UsageError(
            f"{where}: agent is {agent!r:.100}, expected a function of task and endpoint, or `file.py:function`"
        )
    found = agent.call if isinstance(agent, Function) else agent
    _refuse_while_loading(found)
    return {"type": "outside", "function": _import_name(found)}


def _evaluated(listed: Sequence[Task]) -> int:
    held = sum(task.split == "held_out" for task in listed)
    return min(64, held) if listed and held else 64


def _slug(cls: type[Environment]) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.id or cls.__name__).lower()
