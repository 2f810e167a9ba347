"""The card of an environment: seven questions answered, and what agents that know nothing or everything earn."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from math import sqrt
from statistics import fmean, stdev

from kifu.envs.calling.guard import GuardedEnvironment
from kifu.envs.calling.waiting import to_end
from kifu.envs.contract import Environment
from kifu.envs.play import Episode, PlayAgent, play, scripted, silent, uniform_agent
from kifu.envs.spec import Task
from kifu.envs.splits import SPLITS
from kifu.errors import BoundaryError
from kifu.records import Json, ToolCall

TRAINED = (
    "tokens the policy sampled, by the probability recorded when they were sampled; never prompt, template, tool "
    "results or tokens a grammar forces"
)
MESSAGES = (
    "the opening observation, one reply per call, and an error reply to a turn that is no call; all of them "
    "observations, none of them system text"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentScore:
    """Mean reward of one agent over tasks, with a 95 % interval."""

    agent: str
    tasks: int
    mean: float | None
    """None when no task had a reward."""
    low: float | None
    high: float | None
    turns: float
    """Mean number of calls."""
    components: Mapping[str, float]
    """Mean sum of each reward component per episode."""
    errors: int
    """Episodes that failed at a boundary; they are in no mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What an environment is, for people, reports and the protocol."""

    name: str
    version: str
    summary: str
    action: str
    policy_sees: str
    environment_says: str
    end: str
    reward: str
    irreversible: str
    trained: str
    hidden: str
    success: str
    failure: str
    initial_states: str
    reset: str
    instructions: str
    tools: tuple[Mapping[str, Json], ...]
    """Of the first task's initial state."""
    capabilities: Mapping[str, Json]
    components: Mapping[str, Mapping[str, Json]]
    """Six declarations of everything that can be paid on the way."""
    scores: tuple[AgentScore, ...]

    def to_json(self) -> dict[str, Json]:
        """Plain JSON."""
        found: dict[str, Json] = {
            **{name: getattr(self, name) for name in self.__slots__ if isinstance(getattr(self, name), str)},
            "tools": [dict(tool) for tool in self.tools],
            "capabilities": dict(self.capabilities),
            "components": {name: dict(item) for name, item in self.components.items()},
            "scores": [{**asdict(score), "components": dict(score.components)} for score in self.scores],
        }
        return found


def environment_card(
    cls: type[Environment], *, split: str = "train", seed: int | None = None, num_tasks: int = 32
) -> Card:
    """Describe an environment and measure three agents on it.

    ``null`` answers at once with nothing; ``random`` plays any allowed call, or the demonstrator's noise where calls
    are not finite; ``gold`` plays the demonstrator without noise. An agent the environment does not admit is left out.

    Args:
        cls: the environment.
        split: whose tasks.
        seed: first task; the split's first when None.
        num_tasks: how many.
    """
    first = seed if seed is not None else SPLITS[split].start if split in SPLITS else 0
    tasks = list(islice(cls.tasks(split, first), num_tasks))
    return to_end(_card(cls, tasks))


async def _card(cls: type[Environment], tasks: Sequence[Task]) -> Card:
    guard = GuardedEnvironment(cls)
    await guard.reset(tasks[0], tasks[0].seed)
    tools = tuple(
        {
            "name": spec.name,
            "description": spec.description,
            "parameters": dict(spec.parameters),
            "command": spec.command,
        }
        for spec in guard.tools()
    )
    await guard.close()
    facts = {key: cls.facts.get(key, "not declared") for key in _FACTS}
    return Card(
        name=guard.environment_id,
        version=guard.environment_version,
        summary=(cls.__doc__ or "").strip().split("\n\n")[0].replace("\n", " "),
        action=facts["actions"],
        policy_sees=f"{facts['observations']}; each observation carries a trust label",
        environment_says=MESSAGES,
        end=facts["end"],
        reward=facts["reward"],
        irreversible=facts["irreversible"],
        trained=TRAINED,
        hidden=cls.facts.get("hidden", "not declared"),
        success=facts["success"],
        failure=facts["failure"],
        initial_states=facts["initial states"],
        reset=facts["reset, versions, seeds"],
        instructions=cls.instructions,
        tools=tools,
        capabilities=asdict(cls.capabilities),
        components={name: asdict(item) for name, item in cls.components.items()},
        scores=tuple([await _measure(cls, tasks, name) for name in _agents(cls, tasks[0], bool(tools))]),
    )


_FACTS = (
    "initial states",
    "observations",
    "actions",
    "reset, versions, seeds",
    "success",
    "failure",
    "end",
    "reward",
    "irreversible",
)


def _agents(cls: type[Environment], task: Task, has_tools: bool) -> list[str]:
    names = ["null", "random"] if has_tools else ["null"]
    return [*names, "gold"] if _script(cls, task, noise=0.0) else names


def _script(cls: type[Environment], task: Task, *, noise: float) -> Sequence[ToolCall | str]:
    try:
        return cls.demonstrate(task, seed=task.seed, noise=noise)
    except NotImplementedError:
        return ()


def _agent(cls: type[Environment], task: Task, name: str) -> PlayAgent:
    match name:
        case "null":
            return silent
        case "gold":
            return scripted(_script(cls, task, noise=0.0))
        case _:
            return uniform_agent(f"card/{task.id}/{task.seed}", otherwise=_script(cls, task, noise=1.0))


async def _measure(cls: type[Environment], tasks: Sequence[Task], agent: str) -> AgentScore:
    played: list[Episode] = []
    errors = 0
    for task in tasks:
        guard = GuardedEnvironment(cls)
        try:
            played.append(await play(guard, task, _agent(cls, task, agent)))
        except BoundaryError:
            errors += 1
        await guard.close()
    rewards = [episode.verdict.reward for episode in played if episode.verdict.reward is not None]
    mean, low, high = _interval(rewards)
    names = sorted({name for episode in played for name in episode.components})
    return AgentScore(
        agent=agent,
        tasks=len(tasks),
        mean=mean,
        low=low,
        high=high,
        turns=fmean(len(episode.steps) for episode in played) if played else 0.0,
        components={name: fmean(episode.components.get(name, 0.0) for episode in played) for name in names},
        errors=errors,
    )


def _interval(rewards: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean with a 95 % interval: Wilson (1927, score interval) for 0/1 rewards, normal otherwise."""
    if not rewards:
        return None, None, None
    count, mean, z = len(rewards), fmean(rewards), 1.959963984540054
    if set(rewards) <= {0.0, 1.0}:
        middle = (mean + z * z / (2 * count)) / (1 + z * z / count)
        half = z * sqrt(mean * (1 - mean) / count + z * z / (4 * count * count)) / (1 + z * z / count)
        return mean, max(0.0, middle - half), min(1.0, middle + half)
    half = z * stdev(rewards) / sqrt(count)
    return mean, mean - half, mean + half
