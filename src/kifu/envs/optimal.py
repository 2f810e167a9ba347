"""What an optimal policy with perfect recall does in a finite world, for any reward: dynamic programming over beliefs.

In a deterministic world with equally likely initial states a history says exactly which states are still possible, all
of them equally likely. That collection is the *belief*; it is a Markov state, and a policy with perfect recall needs no
more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import TypeAlias

from kifu.envs.finite import FiniteModel
from kifu.errors import UsageError

Belief: TypeAlias = tuple[int, ...]
"""Nodes that are possible, each as often as its share of the probability, in increasing order."""
After: TypeAlias = tuple[tuple[float, Belief], ...]
"""What can follow, with probabilities."""
Payment: TypeAlias = Callable[[FiniteModel, int, int], float]
"""Reward of a call: the model, the node, and the place of the call among those of the node."""
_TIE = 1e-9
"""Values that differ by less, relative to the larger one, are the same."""
_SWEEPS, _SETTLED = 20_000, 1e-13


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The optimal value and every optimal call of every belief that can be reached."""

    start: After
    """Probability of each first belief."""
    values: Mapping[Belief, float]
    """0 where the episode is over."""
    calls: Mapping[Belief, tuple[str, ...]]
    """All calls that are optimal, ties included; none where the episode is over."""
    after: Mapping[Belief, Mapping[str, After]]
    """What each call can lead to."""

    @property
    def value(self) -> float:
        """Optimal expected return from the start."""
        return sum(chance * self.values[belief] for chance, belief in self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What the optimal policy does from the start on, taking the first of equally good calls."""

    calls: tuple[str, ...]
    """Up to the end, or up to the first belief that comes again."""
    ends: bool
    """False when a belief comes again: from there the same calls are optimal for ever."""


def pay_verdict(model: FiniteModel, node: int, at: int) -> float:
    """The verdict's reward, once, with the call that ends the episode."""
    after = model.nodes[model.successors[node][at]]
    return 0.0 if after.stop is None else after.reward


def pay_components(weights: Mapping[str, float]) -> Payment:
    """Reward components with weights; one that has none is not paid."""

    def pay(model: FiniteModel, node: int, at: int) -> float:
        return sum(weights.get(name, 0.0) * value for name, value in model.paid[node][at].items())

    return pay


def pay_potential(*, gamma: float) -> Payment:
    """What potential-based shaping adds, gamma Phi(s') - Phi(s); an end has potential 0."""

    def potential(model: FiniteModel, node: int) -> float:
        found = model.nodes[node].potential
        if found is None:
            raise UsageError("shaping needs a potential of every state; the environment offers none")
        return 0.0 if model.nodes[node].stop is not None else found

    def pay(model: FiniteModel, node: int, at: int) -> float:
        return gamma * potential(model, model.successors[node][at]) - potential(model, node)

    return pay


def pay_all(payments: Sequence[Payment]) -> Payment:
    """The sum of several rewards."""
    return lambda model, node, at: sum(pay(model, node, at) for pay in payments)


def optimum(model: FiniteModel, pay: Payment, *, gamma: float) -> Optimum:
    """Solve a finite world for one reward, by value iteration over the beliefs that can be reached.

    Args:
        model: from `explore`.
        pay: reward of a call in a node.
        gamma: discount per call. A world without a bound on its episodes needs one below 1.

    Raises:
        UsageError: the values do not settle.
    """
    start = _split(model, model.start)
    world = _World(gamma=gamma, after={}, rewards={})
    stack = [belief for _, belief in start]
    while stack:
        belief = stack.pop()
        if belief in world.after:
            continue
        world.after[belief], world.rewards[belief] = {}, {}
        for at, call in enumerate(model.nodes[belief[0]].calls):
            world.rewards[belief][call.name] = sum(pay(model, node, at) for node in belief) / len(belief)
            world.after[belief][call.name] = _split(model, [model.successors[node][at] for node in belief])
            stack += [found for _, found in world.after[belief][call.name]]
    values = world.solve()
    return Optimum(start=start, values=values, calls=world.best(values), after=world.after)


def follow(found: Optimum, first: Belief) -> Course:
    """What the optimal policy does from a belief on, along the likeliest of what can happen."""
    belief, calls, seen = first, list[str](), {first}
    while found.calls[belief]:
        calls.append(found.calls[belief][0])
        _, belief = max(found.after[belief][calls[-1]])
        if belief in seen:
            return Course(calls=tuple(calls), ends=False)
        seen.add(belief)
    return Course(calls=tuple(calls), ends=True)


def _split(model: FiniteModel, nodes: Sequence[int]) -> After:
    """Beliefs that what is shown next leaves, with their probabilities."""
    shown: dict[object, list[int]] = {}
    for node in nodes:
        here = model.nodes[node]
        shown.setdefault((here.seen, here.stop), []).append(node)
    return tuple((len(found) / len(nodes), tuple(sorted(found))) for found in shown.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """Beliefs, what calls pay in them and lead to."""

    gamma: float
    after: dict[Belief, dict[str, After]]
    rewards: dict[Belief, dict[str, float]]

    def worth(self, belief: Belief, call: str, values: Mapping[Belief, float]) -> float:
        then = sum(chance * values[found] for chance, found in self.after[belief][call])
        return self.rewards[belief][call] + self.gamma * then

    def solve(self) -> dict[Belief, float]:
        values, moved = dict.fromkeys(self.after, 0.0), 0.0
        for _ in range(_SWEEPS):
            moved = 0.0
            for belief, choices in reversed(self.after.items()):
                if choices:
                    best = max(self.worth(belief, call, values) for call in choices)
                    moved = max(moved, abs(best - values[belief]))
                    values[belief] = best
            if moved <= _SETTLED * max(1.0, *map(abs, values.values())):
                return values
        raise UsageError(f"the values still move by {moved:.2g} after {_SWEEPS} sweeps; use gamma below 1")

    def best(self, values: Mapping[Belief, float]) -> dict[Belief, tuple[str, ...]]:
        return {
            belief: tuple(
                call
                for call in choices
                if isclose(self.worth(belief, call, values), values[belief], rel_tol=_TIE, abs_tol=_TIE)
            )
            for belief, choices in self.after.items()
        }
