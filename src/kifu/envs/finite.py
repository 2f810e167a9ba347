"""Exact answers for small environments: every state reached, every policy of a kind compared.

`explore` turns a deterministic environment with snapshots and finitely many calls into a `FiniteModel` by trying every
call from every state it can restore. On the model the best value reachable with a given *information state* is found by
exhaustive search with a bound, episode probabilities are summed exactly, and the belief is filtered exactly.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kifu.envs.contract import Environment, digest_state
from kifu.envs.spec import Observation, Reply, Task
from kifu.envs.tools import finite_calls
from kifu.errors import UsageError
from kifu.records import Json, StopReason, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A state of the world together with the observation shown on arrival."""

    snapshot: Json
    observation: str
    calls: tuple[ToolCall, ...]
    """Calls the phase allows; empty in a terminal state."""
    stop: StopReason | None
    reward: float
    """Of the verdict if the episode ended here."""
    potential: float | None

    @property
    def seen(self) -> "Seen":
        """What a policy is shown: the observation and the mask."""
        return self.observation, tuple(call.name for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteModel:
    """A deterministic partially observable world with equally likely initial states."""

    nodes: tuple[Node, ...]
    start: tuple[int, ...]
    """One node per task, all equally likely."""
    successors: tuple[tuple[int, ...], ...]
    """Per node, aligned with its calls."""
    paid: tuple[tuple[Mapping[str, float], ...], ...]
    """Reward components of each call, aligned with the successors; they stand for nothing until they have a weight."""


Seen: TypeAlias = tuple[str, tuple[str, ...]]
History: TypeAlias = tuple[tuple[Seen, ToolCall | None], ...]
"""What was seen and what was then done; the last entry has no call yet."""
Information: TypeAlias = Callable[[History], Hashable]
"""What of the history a policy may use."""
Policy: TypeAlias = Callable[[History], Sequence[float]]
"""Probabilities of the present calls, in their order."""


def explore(environment: Environment, tasks: Sequence[Task], *, seed: int = 0, max_nodes: int = 10_000) -> FiniteModel:
    """Reach every state of ``tasks`` by trying every allowed call.

    Raises:
        UsageError: the calls are not finite, the snapshot is not JSON, or there are more than ``max_nodes`` states.
    """
    nodes: list[Node] = []
    index: dict[tuple[str, str, StopReason | None], int] = {}
    successors: list[tuple[int, ...]] = []
    paid: list[tuple[Mapping[str, float], ...]] = []

    def arrive(text: str, stop: StopReason | None) -> int:
        snapshot = environment.snapshot()
        if isinstance(snapshot, bytes):
            raise UsageError(f"{type(environment).__name__}: explore needs JSON snapshots, found bytes")
        key = (digest_state(snapshot), text, stop)
        if key not in index:
            if len(nodes) >= max_nodes:
                raise UsageError(f"{type(environment).__name__}: more than {max_nodes} states; raise max_nodes")
            index[key] = len(nodes)
            nodes.append(_node(environment, snapshot, (text, stop)))
        return index[key]

    start = []
    for task in tasks:
        first = environment.reset(task, seed)
        start.append(arrive(first.text if isinstance(first, Observation) else first, None))
    while len(successors) < len(nodes):
        node = nodes[len(successors)]
        found, rewards = [], []
        for call in node.calls:
            environment.restore(node.snapshot)
            reply = environment.step(call)
            if not isinstance(reply, Reply | str):
                raise UsageError(f"{type(environment).__name__}: explore needs plain tools, `{call.name}` is async")
            found.append(arrive(*((reply.text, reply.stop) if isinstance(reply, Reply) else (reply, None))))
            rewards.append(reply.rewards if isinstance(reply, Reply) else {})
        successors.append(tuple(found))
        paid.append(tuple(rewards))
    return FiniteModel(nodes=tuple(nodes), start=tuple(start), successors=tuple(successors), paid=tuple(paid))


def _node(environment: Environment, snapshot: Json, arrival: tuple[str, StopReason | None]) -> Node:
    text, stop = arrival
    calls = finite_calls(environment.tools(), environment.allowed())
    if calls is None:
        raise UsageError(f"{type(environment).__name__}: explore needs finitely many calls; give parameters an enum")
    return Node(
        snapshot=snapshot,
        observation=text,
        calls=() if stop else calls,
        stop=stop,
        reward=environment.verify().reward or 0.0,
        potential=environment.potential(),
    )


def full(history: History) -> Hashable:
    """Everything: perfect recall."""
    return tuple((seen, call and (call.name, tuple(call.arguments.items()))) for seen, call in history)


def window(size: int) -> Information:
    """Only the last ``size`` observations with their masks, and the calls between them."""
    return lambda history: full(history[-size:])


def memoryless(history: History) -> Hashable:
    """Only the present observation and mask, as a feed-forward policy sees them."""
    return history[-1][0]


def visits(history: History) -> Hashable:
    """The present observation and mask, and how often they were seen before."""
    return history[-1][0], sum(seen == history[-1][0] for seen, _ in history[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best deterministic policy of a kind."""

    value: float
    policy: Mapping[Hashable, ToolCall]
    """For every information state it meets."""


def best_deterministic(model: FiniteModel, information: Information, *, horizon: int) -> Best:
    """The largest expected reward of any deterministic policy that uses only ``information``.

    Tries every assignment of calls to the information states it meets and drops one as soon as even full reward on all
    undecided initial states cannot beat the best so far. Rewards must lie in [0, 1]. An episode longer than ``horizon``
    steps is worth the reward of the state it is cut in.
    """
    weight = 1.0 / len(model.start)
    best: list[Best] = [Best(value=-1.0, policy={})]

    def walk(policy: dict[Hashable, int], at: int, value: float) -> None:
        if value + weight * (len(model.start) - at) <= best[0].value:
            return
        if at == len(model.start):
            best[0] = Best(value=value, policy={key: calls[key][choice] for key, choice in policy.items()})
            return
        node, steps = model.start[at], 0
        history: History = ()
        while model.nodes[node].calls and steps < horizon:
            key = information((*history, (model.nodes[node].seen, None)))
            if key not in policy:
                calls[key] = model.nodes[node].calls
                for choice in range(len(calls[key])):
                    walk({**policy, key: choice}, at, value)
                return
            history = (*history, (model.nodes[node].seen, model.nodes[node].calls[policy[key]]))
            node, steps = model.successors[node][policy[key]], steps + 1
        walk(policy, at + 1, value + weight * model.nodes[node].reward)

    calls: dict[Hashable, tuple[ToolCall, ...]] = {}
    walk({}, 0, 0.0)
    return best[0]


def expected_reward(model: FiniteModel, policy: Policy, *, horizon: int) -> float:
    """Exact expected reward of a stochastic policy over whole histories, by summing over every episode."""

    def value(node: int, history: History) -> float:
        here = model.nodes[node]
        if not here.calls or len(history) == horizon:
            return here.reward
        chances = policy((*history, (here.seen, None)))
        return sum(
            chance * value(model.successors[node][at], (*history, (here.seen, here.calls[at])))
            for at, chance in enumerate(chances)
            if chance > 0.0
        )

    return sum(value(node, ()) for node in model.start) / len(model.start)


def belief(model: FiniteModel, history: History) -> dict[int, float]:
    """Exact probability of each state given everything seen and done; a function of the full history alone.

    Raises:
        UsageError: no initial state explains the history.
    """
    weights = dict.fromkeys(model.start, 0.0)
    for node in model.start:
        weights[node] += 1.0
    for at, (seen, call) in enumerate(history):
        weights = {node: weight for node, weight in weights.items() if model.nodes[node].seen == seen}
        if call is not None and at + 1 < len(history):
            moved: dict[int, float] = {}
            for node, weight in weights.items():
                target = model.successors[node][model.nodes[node].calls.index(call)]
                moved[target] = moved.get(target, 0.0) + weight
            weights = moved
    total = sum(weights.values())
    if total == 0.0:
        raise UsageError("belief: no initial state of the model explains this history")
    return {node: weight / total for node, weight in weights.items()}
