"""The conformance check of environments: what every rollout, branch and replay relies on."""

import copy
import json
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from kifu.envs import SPLITS, Environment, GuardedEnvironment, SnapshotKind, Task, ToolSpec
from kifu.envs.calling.waiting import to_end
from kifu.envs.play import Episode, PlayAgent, play, scripted, silent, uniform_agent
from kifu.errors import KifuError, VerifierFailure
from kifu.records import ToolCall

Actions = Sequence[ToolCall | str]
_KNOWN_TYPES = {"string", "integer", "number", "boolean", "array", "object"}


def check_env(
    cls: type[Environment],
    tasks: Sequence[Task] | None = None,
    *,
    split: str = "train",
    num_tasks: int = 8,
    resets: int = 1000,
) -> None:
    """Check an environment against the contract; every problem found is listed.

    Checked: the class declares itself; resets, calls and verdicts are a function of task, seed and actions; a reset
    leaves nothing behind, after ``resets`` of them either; instances share nothing and draw from no global random
    stream; the demonstrator earns 1 and silence less; who does a part of the work earns less unless the world is right,
    and a component that is not repeatable is paid once; verdicts repeat and change nothing; snapshots survive JSON, are
    not changed by going on, and a restored world goes on as the first did; calls that do not fit are answered, not
    raised; ``close`` may be repeated; tool schemas are sound; observations keep to a declared vocabulary; the mask
    names tools only.

    Args:
        cls: the environment.
        tasks: what to try; the first of ``split`` when None.
        split: whose tasks.
        num_tasks: how many.
        resets: how many to test for leaks and throughput.

    Raises:
        AssertionError: one line per problem.
    """
    problems = _declaration(cls)
    if tasks is None:
        start = SPLITS[split].start if split in SPLITS else 0
        tasks = list(islice(cls.tasks(split, start), num_tasks))
    problems += to_end(_all(cls, tasks, resets))
    if problems:
        raise AssertionError(f"{cls.__name__} breaks the contract:\n" + "\n".join(f"- {line}" for line in problems))


def _declaration(cls: type[Environment]) -> list[str]:
    problems = []
    if not cls.version:
        problems.append("version is empty; a change of behaviour needs a version to change")
    if any(symbol != "".join(symbol.split()) or not symbol for symbol in cls.vocabulary):
        problems.append("vocabulary holds a symbol with white space or an empty one")
    if len(set(cls.vocabulary)) != len(cls.vocabulary):
        problems.append("vocabulary names a symbol twice")
    return problems


async def _all(cls: type[Environment], tasks: Sequence[Task], resets: int) -> list[str]:
    problems: list[str] = []
    for task in tasks:
        for check in _CHECKS:
            try:
                found = await check(cls, task)
            except KifuError as error:
                found = [f"{type(error).__name__}: {error}"]
            problems += [f"task {task.id}: {line}" for line in found]
    if not problems:
        problems += await _many_resets(cls, tasks, resets)
    return problems


async def _episode(cls: type[Environment], task: Task, agent: PlayAgent) -> Episode:
    guard = GuardedEnvironment(cls)
    try:
        return await play(guard, task, agent)
    finally:
        await guard.close()


def _scripts(cls: type[Environment], task: Task) -> tuple[Actions, Actions]:
    """The demonstrator without noise and with nothing but noise; empty where there is none."""
    try:
        return cls.demonstrate(task, seed=task.seed), cls.demonstrate(task, seed=task.seed, noise=1.0)
    except NotImplementedError:
        return (), ()


def _agents(cls: type[Environment], task: Task) -> list[PlayAgent]:
    """Fresh agents that act equally each time they are made."""
    gold, noisy = _scripts(cls, task)
    return [scripted(gold), scripted(noisy), uniform_agent(f"check/{task.id}", otherwise=noisy)]


async def _schemas(cls: type[Environment], task: Task) -> list[str]:
    guard = GuardedEnvironment(cls)
    await guard.reset(task, task.seed)
    problems = [line for spec in guard.tools() for line in _schema(spec)]
    names = [spec.name for spec in guard.tools()]
    if len(set(names)) != len(names):
        problems.append(f"tools() names a tool twice: {names}")
    await guard.close()
    return problems


def _schema(spec: ToolSpec) -> list[str]:
    where, problems = f"tool `{spec.name}`", []
    try:
        json.dumps(dict(spec.parameters), allow_nan=False)
    except (TypeError, ValueError) as error:
        return [f"{where}: its parameters are not JSON: {error}"]
    properties, required = spec.parameters.get("properties", {}), spec.parameters.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    for name, schema in properties.items():
        if not isinstance(schema, dict) or schema.get("type") not in _KNOWN_TYPES:
            problems.append(f"{where}, parameter `{name}`: found schema {schema!r}, expected a type")
        elif "enum" in schema and not schema["enum"]:
            problems.append(f"{where}, parameter `{name}`: the enum is empty, so no call fits")
    problems += [f"{where}: required `{name}` is no parameter" for name in required if name not in properties]
    holes = set(re.findall(r"\{(\w+)\}", spec.command or ""))
    problems += [
        f"{where}: the command template names `{name}`, no parameter" for name in sorted(holes - {*properties})
    ]
    if not spec.description:
        problems.append(f"{where}: no description")
    return problems


async def _repeats(cls: type[Environment], task: Task) -> list[str]:
    problems = []
    before = random.getstate(), str(np.random.get_state())
    for first_agent, second_agent in zip(_agents(cls, task), _agents(cls, task), strict=True):
        first, second = await _episode(cls, task, first_agent), await _episode(cls, task, second_agent)
        if cls.capabilities.deterministic and _shown(first) != _shown(second):
            problems.append("two episodes with the same seed and actions differ; take all randomness from the seed")
        paid = sorted({name for step in first.steps for name in step.reply.rewards} - {*cls.components})
        if paid:
            problems.append(f"replies pay {paid}, which `components` does not declare")
        if cls.vocabulary:
            texts = [first.opening.text, *(step.reply.text for step in first.steps)]
            strangers = sorted({word for text in texts for word in text.split()} - {*cls.vocabulary})
            if strangers:
                problems.append(f"observations hold {strangers}, which the vocabulary does not list")
    if (random.getstate(), str(np.random.get_state())) != before:
        problems.append("the global random stream of `random` or `numpy.random` moved; use a generator of your own")
    return problems


def _shown(episode: Episode) -> object:
    steps = [(step.reply.text, dict(step.reply.rewards), step.reply.stop, step.reply.error) for step in episode.steps]
    verdict = replace(episode.verdict, resource_usage={})
    return episode.opening, steps, episode.digests, verdict


async def _pay(cls: type[Environment], task: Task) -> list[str]:
    """All that is paid for finishing is paid to nobody else: not for silence, a part of the work, or chance."""
    if cls.capabilities.continuing:
        return []
    gold, noisy = _scripts(cls, task)
    parts = range(1, len(gold), max(1, len(gold) // 4))
    agents: dict[str, PlayAgent] = {
        "that says nothing": silent,
        "that acts at random": uniform_agent(f"check/{task.id}", otherwise=noisy),
        **{f"that stops after {at} of {len(gold)} actions of the demonstrator": scripted(gold[:at]) for at in parts},
    }
    problems = []
    if gold:
        reward = (await _episode(cls, task, scripted(gold))).verdict.reward
        if reward != 1.0:
            problems.append(f"the demonstrator earns {reward}, expected 1")
    for name, agent in agents.items():
        episode = await _episode(cls, task, agent)
        reward, is_paid = episode.verdict.reward, episode.verdict.success and agent is not silent
        if reward is not None and reward >= 1.0 and not is_paid:
            problems.append(f"an agent {name} earns {reward}, expected less than 1")
        problems += _paid_again(cls, episode)
    return problems


def _paid_again(cls: type[Environment], episode: Episode) -> list[str]:
    once = [name for name, item in cls.components.items() if not item.is_repeatable]
    times = {name: sum(step.reply.rewards.get(name, 0.0) != 0.0 for step in episode.steps) for name in once}
    return [
        f"component `{name}` is paid {count} times in an episode and declared not to be repeatable"
        for name, count in times.items()
        if count > 1
    ]


async def _branches(cls: type[Environment], task: Task) -> list[str]:
    if cls.capabilities.snapshot in (SnapshotKind.NONE, SnapshotKind.REPLAY):
        return []
    problems: list[str] = []
    for actions in (list(script) for script in _scripts(cls, task)):
        for at in range(0, len(actions), max(1, len(actions) // 4)):
            problems += await _branch(cls, task, (actions[:at], actions[at:]))
    return list(dict.fromkeys(problems))


async def _branch(cls: type[Environment], task: Task, actions: tuple[Actions, Actions]) -> list[str]:
    """Snapshot between two parts; go on; restore into a new instance and into the same one; go on again."""
    first, other = GuardedEnvironment(cls), GuardedEnvironment(cls)
    try:
        await play(first, task, scripted(actions[0]))
        snapshot, digest = await first.snapshot()
        kept = copy.deepcopy(snapshot)
        straight = await _go_on(first, actions[1])
        if snapshot != kept:
            return ["going on changes a snapshot that was taken before; snapshot() must return a copy"]
        try:
            ref = snapshot if isinstance(snapshot, bytes) else json.loads(json.dumps(snapshot, allow_nan=False))
        except (TypeError, ValueError) as error:
            return [f"the snapshot does not survive JSON: {error}"]
        await other.reset(task, task.seed)
        problems = []
        for guard, whose in ((other, "a new instance"), (first, "the same instance")):
            await guard.restore(ref, digest=digest)
            if await _go_on(guard, actions[1]) != straight:
                problems.append(f"{whose} goes on differently after restore; the snapshot is incomplete")
        return problems
    finally:
        await first.close()
        await other.close()


async def _go_on(guard: GuardedEnvironment, actions: Actions) -> object:
    seen: list[object] = [guard.view]
    for action in actions:
        if isinstance(action, str):
            await guard.answered(action)
        else:
            called = await guard.call(action)
            seen.append((called.reply, guard.view))
    first, second = await guard.verify(), await guard.verify()
    if replace(first, resource_usage={}) != replace(second, resource_usage={}):
        raise VerifierFailure("verify gives another verdict the second time")
    return seen, guard.final_digest, replace(first, resource_usage={})


async def _misfits(cls: type[Environment], task: Task) -> list[str]:
    guard = GuardedEnvironment(cls)
    await guard.reset(task, task.seed)
    bad = [ToolCall(name="no_such_tool"), ToolCall(name="__init__"), ToolCall(name="reset")]
    allowed = guard.allowed()
    for spec in guard.tools():
        properties = spec.parameters.get("properties", {})
        assert isinstance(properties, dict)
        bad.append(ToolCall(name=spec.name, arguments={"no_such_argument": 1}))
        bad += [ToolCall(name=spec.name, arguments={name: None}) for name in properties]
        if spec.parameters.get("required"):
            bad.append(ToolCall(name=spec.name))
        if allowed is not None and spec.name not in allowed and not properties:
            bad.append(ToolCall(name=spec.name))
    problems = []
    for call in bad:
        await guard.reset(task, task.seed)
        called = await guard.call(call)
        if called.reply.error is None:
            problems.append(f"the call {call.name}({dict(call.arguments)}) does not fit, yet its reply has no error")
        if cls.vocabulary and not {*called.reply.text.split()} <= {*cls.vocabulary}:
            problems.append(f"the answer to a call that does not fit, {called.reply.text!r}, is not in the vocabulary")
    await guard.close()
    return problems


async def _isolation(cls: type[Environment], task: Task) -> list[str]:
    problems = []
    gold, noisy = _scripts(cls, task)
    one, two = GuardedEnvironment(cls), GuardedEnvironment(cls)
    await one.reset(task, task.seed)
    await two.reset(task, task.seed)
    await _go_on(one, noisy or gold)
    try:
        await two.verify()
    except VerifierFailure:
        problems.append("an episode changes another instance; keep state on self")
    await one.close()
    await two.close()
    instance = cls()
    closing = GuardedEnvironment(lambda: instance)
    await closing.reset(task, task.seed)
    await closing.close()
    try:
        instance.close()
    except Exception as error:
        problems.append(f"a second close raised {type(error).__name__}: {error}")
    return problems


async def _many_resets(cls: type[Environment], tasks: Sequence[Task], resets: int) -> list[str]:
    guard = GuardedEnvironment(cls)
    first: dict[int, object] = {}
    problems = []
    for count in range(resets):
        at = count % len(tasks)
        opening = await guard.reset(tasks[at], tasks[at].seed)
        if count < 2 * len(tasks):
            _, noisy = _scripts(cls, tasks[at])
            seen = (opening, guard.view)
            await _go_on(guard, noisy)
        else:
            seen = (opening, guard.view)
        if first.setdefault(at, seen) != seen and cls.capabilities.deterministic:
            problems.append(f"task {tasks[at].id}: reset number {count + 1} of one instance differs from its first")
            break
    await guard.close()
    return problems


_CHECKS: tuple[Callable[[type[Environment], Task], Awaitable[list[str]]], ...] = (
    _schemas,
    _repeats,
    _pay,
    _branches,
    _misfits,
    _isolation,
)
