"""An agent outside, as an experiment names it: made, identified by its code, refused where a method cannot use it."""

import ast
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kifu.agents import Agent
from kifu.credit.branching import Independent
from kifu.credit.scored import NoScores
from kifu.envs import Environment
from kifu.envs.files import load_module
from kifu.envs.suites.jsonl import RewardFunction, resolve_reward
from kifu.errors import ArgumentError, ExperimentError
from kifu.gateway import BoxedCommand, Command, Forked, Function, OutsideAgent
from kifu.gateway.boxed import limits_of_agent
from kifu.gateway.listening import check_installed
from kifu.records import Json
from kifu.render import Renderer
from kifu.sandbox import Guarantee, Mount, Tree
from kifu.sandbox.contract import check_mounts
from kifu.training.experiment.agent_layers import AgentBox, OutsideAgentLayer
from kifu.training.experiment.layers import Experiment, HfPolicy
from kifu.training.experiment.reading import Loaded
from kifu.training.experiment.stages import Stage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outsider:
    """An agent outside and who judges it."""

    make: Callable[[], OutsideAgent]
    """A fresh one; it belongs to one event loop."""
    id: str
    gives: tuple[str, ...] = ()
    """Of a task's data, beside the prompt."""
    verifier: RewardFunction | None = None
    """Judges the answer; None: the environment hears it and judges."""
    protocol: Mapping[str, Json] = field(default_factory=dict)
    """What it is, by the digests of its code."""

    @property
    def controller(self) -> str:
        """Its name in the protocol."""
        return f"outside/{self.id}"


def outsider_of(loaded: Loaded, stages: Sequence[Stage], *, environment: type[Environment]) -> Outsider | None:
    """The agent outside that an experiment names; None where kifu's own strategy acts.

    Args:
        loaded: the experiment; relative paths start at its folder.
        stages: in order, each with its method.
        environment: gives the tasks.

    Raises:
        ExperimentError: it is not there, or something else of the experiment cannot work with it.
        UsageError: what hears it is not installed.
    """
    policy, folder, given = loaded.experiment.policy, loaded.folder, loaded.agent
    layer = policy.agent if isinstance(policy, HfPolicy) else None
    if not isinstance(layer, OutsideAgentLayer):
        return None
    _check_suited(loaded.experiment, stages, environment=environment)
    check_installed()
    verifier = None if layer.verifier is None else resolve_reward(_placed(layer.verifier, folder))
    judged: dict[str, Json] = {} if verifier is None else {"verifier": _code_of(verifier)}
    if layer.function is not None:
        made = _function_of(layer.function, folder) if given is None else given
        code = _code_of(made.call if isinstance(made, Function) else made)
        return Outsider(
            make=lambda: made,
            id=made.id,
            gives=layer.gives,
            verifier=verifier,
            protocol={"function": code, "gives": [*layer.gives], **judged},
        )
    if layer.run is not None:
        source, _, function = layer.run.rpartition(":")
        file = folder / source
        _check_function(file, function)
        forked = Forked(file, function, python=loaded.machine.agent_python)
        protocol: dict[str, Json] = {"run": f"{file.name}:{function}", "code": _digest(file)}
        return Outsider(
            make=lambda: Forked(file, function, python=loaded.machine.agent_python),
            id=forked.id,
            gives=layer.gives,
            verifier=verifier,
            protocol={**protocol, "gives": [*layer.gives], **judged},
        )
    return _commanded(loaded, layer, verifier=verifier, judged=judged)


def _commanded(
    loaded: Loaded, layer: OutsideAgentLayer, *, verifier: RewardFunction | None, judged: Mapping[str, Json]
) -> Outsider:
    """A program, in a box or not."""
    assert layer.command is not None
    command: Command | BoxedCommand
    if layer.box is None:
        arguments = tuple(_placed(item, loaded.folder) for item in layer.command)
        command = Command(arguments=arguments)
        code: dict[str, Json] = {
            Path(item).name: _digest(Path(item)) for item in arguments if Path(item).suffix and Path(item).is_file()
        }
    else:
        command = _boxed(loaded, layer.command, layer.box)
        mounts: list[Json] = [mount.target for mount in command.mounts]
        code = {"files": command.files.digest, "mounts": mounts, "limits": repr(command.limits)}

    def make() -> OutsideAgent:
        if isinstance(command, BoxedCommand):
            command.check()
        return command

    return Outsider(
        make=make,
        id=command.id,
        gives=layer.gives,
        verifier=verifier,
        protocol={"command": [*layer.command], "code": code, "gives": [*layer.gives], **judged},
    )


def _boxed(loaded: Loaded, arguments: tuple[str, ...], box: AgentBox) -> BoxedCommand:
    """The command in a box that this machine can make.

    Raises:
        ExperimentError: its files are not there, or a mount would cover what every box has.
        SandboxUnavailable: no back-end proves its guarantees here.
    """
    files = Tree() if box.files is None else _files_of(loaded.folder, box.files)
    for item in loaded.machine.agent_mounts:
        if not Path(item.source).is_dir():
            raise ExperimentError(f"machine.agent_mounts: source {item.source} is no folder of this machine")
    try:
        mounts = tuple(Mount(source=item.source, target=item.target) for item in loaded.machine.agent_mounts)
        check_mounts(mounts)
    except ArgumentError as error:
        raise ExperimentError(f"machine.agent_mounts: {error}") from error
    limits = limits_of_agent(seconds=box.seconds, memory_bytes=box.memory_mb << 20, processes=box.processes)
    made = BoxedCommand(
        arguments=arguments,
        files=files,
        mounts=mounts,
        limits=limits,
        backends=box.backends,
        require=frozenset(map(Guarantee, box.require)),
        python=box.python,
    )
    return made


def _files_of(folder: Path, name: str) -> Tree:
    """Files that the box shows to the agent; never those of the experiment, which hold what it must not see."""
    place = folder / name
    if not place.is_dir():
        raise ExperimentError(f"policy.agent.box.files: no folder {place}; paths start at the experiment's folder")
    if folder.resolve().is_relative_to(place.resolve()):
        raise ExperimentError(
            f"policy.agent.box.files: {place} holds the experiment itself, with its tasks and its judge; give the "
            "agent a folder of its own"
        )
    try:
        return Tree.from_folder(place)
    except ArgumentError as error:
        raise ExperimentError(f"policy.agent.box.files: {error}") from error


def acting(agent: Agent, outsider: Outsider | None, renderer: Renderer) -> dict[str, Any]:
    """Who acts and how its history grows, as a protocol's identity has it."""
    if outsider is None:
        return {"controller": agent.id, "history": str(renderer.digests.extra.get("history", "append/1"))}
    return {"controller": outsider.controller, "agent": outsider.protocol, "history": "gateway/1"}


def _check_suited(experiment: Experiment, stages: Sequence[Stage], *, environment: type[Environment]) -> None:
    """Refuse what an agent with its own loop cannot do.

    Raises:
        ExperimentError: the message says what to change.
    """
    policy = experiment.policy
    assert isinstance(policy, HfPolicy)
    if policy.decoding.grammar is not None:
        raise ExperimentError(
            "policy.decoding.grammar constrains kifu's own turns; an outside agent asks for a form by itself "
            "(tool_choice, response_format). Leave the grammar out"
        )
    if policy.prompt.examples or policy.prompt.instructions is not None or policy.prompt.trust != "none":
        raise ExperimentError(
            "policy.prompt: an outside agent writes its own prompt; leave examples, instructions and trust out"
        )
    if environment.capabilities.continuing:
        raise ExperimentError(
            f"environment `{experiment.environment.name}` goes on from where a rollout was cut, and an outside agent "
            "cannot be put back there; use kifu's own agent"
        )
    for stage in stages:
        plan = stage.algorithm.plan
        what = (
            "lets rollouts branch at turns of others"
            if not isinstance(plan.rollout, Independent) or stage.refreshes
            else "lets a model read finished rollouts as text"
            if not isinstance(plan.scores, NoScores)
            else None
        )
        if what is not None:
            raise ExperimentError(
                f"credit.algorithm = `{stage.method}` {what}, and an outside agent cannot be put back into the middle "
                "of an episode; use kifu's own agent, or a method that needs whole rollouts alone, such as grpo"
            )


def _function_of(name: str, folder: Path) -> OutsideAgent:
    """What a name stands for: an agent, or a function that is one."""
    source, _, attribute = _placed(name, folder).rpartition(":")
    found = getattr(load_module(source, wanted="agent"), attribute, None)
    if isinstance(found, Function | Forked | Command | BoxedCommand):
        return found
    if not callable(found):
        raise ExperimentError(f"policy.agent.function: `{source}` has no function `{attribute}` (task, endpoint)")
    return Function(found)


def _check_function(file: Path, function: str) -> None:
    if not file.is_file():
        raise ExperimentError(f"policy.agent.run: no file {file}; paths start at the experiment's folder")
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError) as broken:
        raise ExperimentError(f"policy.agent.run: {file} is not Python: {broken}") from broken
    known = [item.name for item in body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    if function not in known:
        raise ExperimentError(
            f"policy.agent.run: {file} defines no function `{function}` at its top level, found: {', '.join(known)}"
        )


def _placed(name: str, folder: Path) -> str:
    """A name with a relative file in it taken from the experiment's folder."""
    source, colon, rest = name.partition(":")
    found = folder / source
    return f"{found.resolve()}{colon}{rest}" if Path(source).suffix and found.is_file() else name


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _code_of(item: object) -> Json:
    """SHA-256 of the file that defines a function; its name where there is no file."""
    name = str(getattr(item, "__qualname__", type(item).__name__))
    try:
        found = inspect.getsourcefile(item)  # type: ignore[arg-type]
    except TypeError:
        found = None
    return {"name": name, "code": _digest(Path(found)) if found and Path(found).is_file() else None}
