"""Optimal play of finite worlds, against enumeration of everything that can be done."""

from collections.abc import Callable
from itertools import product
from typing import Any, ClassVar

import pytest

from kifu.credit import shaping_rewards
from kifu.envs import Capabilities, Component, Environment, Reply, SnapshotKind, Task, tool
from kifu.envs.finite import FiniteModel, best_deterministic, explore, full
from kifu.envs.optimal import follow, optimum, pay_all, pay_components, pay_potential, pay_verdict
from kifu.envs.suites.key_door import KeyDoor, model
from kifu.errors import UsageError
from kifu.records import StopReason, Verdict


@pytest.mark.parametrize("budget", range(1, 7))
def test_the_value_of_the_verdict_is_that_of_the_exhaustive_search(budget: int) -> None:
    world = model(budget)
    assert optimum(world, pay_verdict, gamma=1.0).value == best_deterministic(world, full, horizon=budget).value


def returns(world: FiniteModel, calls: tuple[str, ...], pay: Callable[..., float], gamma: float) -> list[float]:
    """Return of one sequence of calls from every start, ended where the episode ends."""
    found = []
    for node in world.start:
        at, total, factor = node, 0.0, 1.0
        for call in calls:
            names = [item.name for item in world.nodes[at].calls]
            if call not in names:
                break
            total += factor * pay(world, at, names.index(call))
            factor *= gamma
            at = world.successors[at][names.index(call)]
        found.append(total)
    return found


@pytest.mark.parametrize("weights", [{}, {"looked": 0.1}, {"looked": 0.05, "right_key": 0.3}, {"clue": -0.2}])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_value_of_any_reward_is_that_of_the_best_sequence_where_nothing_is_hidden(
    weights: dict[str, float], gamma: float
) -> None:
    """With one start there is one state, and no policy does better than the best fixed sequence of calls."""
    world = explore(KeyDoor(), [Task(id="red", data={"door": "red", "budget": 5})])
    pay = pay_all([pay_verdict, pay_components(weights)])
    names = ("inspect", "pickup_red", "pickup_blue", "open_red", "open_blue", "finish")
    best = max(returns(world, calls, pay, gamma)[0] for calls in product(names, repeat=5))

    assert optimum(world, pay, gamma=gamma).value == pytest.approx(best, abs=1e-12)


def test_shaping_pays_what_the_credit_of_a_trajectory_is_paid() -> None:
    world = explore(KeyDoor(), [Task(id="red", data={"door": "red"})])
    calls, at, paid, potentials = ("inspect", "pickup_red", "open_red", "finish"), world.start[0], [], []
    for call in calls:
        place = [item.name for item in world.nodes[at].calls].index(call)
        paid.append(pay_potential(gamma=0.9)(world, at, place))
        potentials.append(world.nodes[at].potential or 0.0)
        at = world.successors[at][place]

    assert paid == pytest.approx(shaping_rewards(potentials, gamma=0.9, terminated=True).tolist())


class Coin(Environment):
    """A hidden coin: peeking costs a call and shows it; naming it ends the episode."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.STATE)
    components: ClassVar[dict[str, Component]] = {}

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def reset(self, task: Task, seed: int) -> str:
        self.state = {"coin": task.data["coin"], "said": None}
        return "start"

    @tool
    def peek(self) -> Reply:
        """Look."""
        return Reply(text=str(self.state["coin"]), rewards={"peeked": 1.0})

    @tool
    def heads(self) -> Reply:
        """Say heads."""
        self.state["said"] = "heads"
        return Reply(text="end", stop=StopReason.SUCCESS)

    @tool
    def tails(self) -> Reply:
        """Say tails."""
        self.state["said"] = "tails"
        return Reply(text="end", stop=StopReason.SUCCESS)

    def verify(self) -> Verdict:
        return Verdict(success=self.state["said"] == self.state["coin"])

    def snapshot(self) -> dict[str, Any]:
        return dict(self.state)

    def restore(self, ref: Any) -> None:  # noqa: ANN401 (a JSON tree)
        self.state = dict(ref)


@pytest.fixture
def coin() -> FiniteModel:
    return explore(Coin(), [Task(id="h", data={"coin": "heads"}), Task(id="t", data={"coin": "tails"})])


@pytest.mark.parametrize(("gamma", "expected", "first"), [(0.9, 0.9, "peek"), (0.5, 0.5, None), (0.4, 0.5, "heads")])
def test_knowing_is_worth_a_call_where_the_discount_leaves_enough(
    coin: FiniteModel, gamma: float, expected: float, first: str | None
) -> None:
    """max(1/2, gamma): guess, or look and know; at 1/2 both are optimal."""
    found = optimum(coin, pay_verdict, gamma=gamma)
    [(_, belief)] = found.start

    assert found.value == pytest.approx(expected)
    assert (first in found.calls[belief]) if first else len(found.calls[belief]) == 3


def test_a_reward_for_every_look_is_collected_for_ever(coin: FiniteModel) -> None:
    """Looking pays w / (1 - gamma) = 2 at w = 0.2, more than the 0.9 of naming the coin once it is known."""
    found = optimum(coin, pay_all([pay_verdict, pay_components({"peeked": 0.2})]), gamma=0.9)
    [(_, belief)] = found.start

    assert found.value == pytest.approx(2.0)
    assert follow(found, belief).ends is False
    assert follow(optimum(coin, pay_verdict, gamma=0.9), belief).calls[0] == "peek"


def test_an_endless_world_without_discount_has_no_value(coin: FiniteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kifu.envs.optimal._SWEEPS", 50)
    with pytest.raises(UsageError, match="gamma below 1"):
        optimum(coin, pay_components({"peeked": 1.0}), gamma=1.0)


def test_shaping_needs_potentials(coin: FiniteModel) -> None:
    with pytest.raises(UsageError, match="potential"):
        optimum(coin, pay_potential(gamma=0.9), gamma=0.9)
