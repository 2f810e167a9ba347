"""Key and door: exact optima, the belief, the leak test, shaping, and both ways to end by a limit."""

from itertools import islice, product

import pytest

from kifu.envs import Reply, Task
from kifu.envs.finite import FiniteModel, History, belief, best_deterministic, expected_reward, full, memoryless, window
from kifu.envs.suites.key_door import BUDGET, COLOURS, KeyDoor, memoryless_optimum, model, optimum
from kifu.errors import UsageError
from kifu.records import StopReason, ToolCall
from kifu.testing import check_env

EXPERT = ("inspect", "pickup_{}", "open_{}", "finish")


def task(door: str, budget: int = BUDGET) -> Task:
    return Task(id=door, family=door, data={"door": door, "budget": budget})


def run(door: str, *names: str, budget: int = BUDGET, early_end: float | None = None) -> tuple[KeyDoor, list[Reply]]:
    world = KeyDoor(early_end)
    world.reset(task(door, budget), 0)
    return world, [world.step(ToolCall(name=name.format(door))) for name in names]


@pytest.mark.parametrize("door", COLOURS)
def test_the_expert_sees_the_clue_once_and_succeeds_in_four_steps(door: str) -> None:
    world, replies = run(door, *EXPERT)
    assert [reply.text for reply in replies] == [f"clue_{door}", "holding", "opened", "ended"]
    assert [reply.stop for reply in replies] == [None, None, None, StopReason.SUCCESS]
    assert world.verify().reward == 1.0


@pytest.mark.parametrize("door", COLOURS)
def test_the_clue_is_shown_only_by_the_first_inspect(door: str) -> None:
    _, replies = run(door, "inspect", "inspect", "pickup_{}", "inspect")
    assert [reply.text for reply in replies] == [f"clue_{door}", "nothing", "holding", "nothing"]


def test_a_wrong_key_and_a_wrong_door_both_fail() -> None:
    for names in (("pickup_blue", "open_blue"), ("pickup_blue", "open_red"), ("pickup_red", "open_blue")):
        world, replies = run("red", *names)
        assert replies[-1].stop is StopReason.FAILURE
        assert world.verify().reward == 0.0


def test_finishing_before_the_door_is_open_fails() -> None:
    world, replies = run("red", "inspect", "finish")
    assert replies[-1].stop is StopReason.FAILURE
    assert world.verify().success is False


@pytest.mark.parametrize(
    ("names", "stop", "reward"),
    [
        (("finish",), StopReason.FAILURE, -0.25),
        (("inspect", "finish"), StopReason.FAILURE, -0.25),
        (("pickup_blue", "open_blue"), StopReason.FAILURE, -0.25),
        (("inspect",) * BUDGET, StopReason.TASK_BUDGET, 0.0),
        (("inspect", "pickup_red"), None, 0.0),
        (EXPERT, StopReason.SUCCESS, 1.0),
    ],
)
def test_with_early_end_only_a_failure_by_the_policy_s_own_act_costs(
    names: tuple[str, ...], stop: StopReason | None, reward: float
) -> None:
    world, replies = run("red", *names, early_end=-0.25)
    assert replies[-1].stop is stop
    assert world.verify().reward == reward
    assert world.verify().success is (reward == 1.0)


def test_an_early_end_must_not_pay() -> None:
    for wrong in (0.1, float("-inf"), float("nan")):
        with pytest.raises(UsageError, match="giving up must not pay"):
            KeyDoor(early_end=wrong)


class Penalized(KeyDoor):
    """As a run makes it from its options."""

    def __init__(self) -> None:
        super().__init__(early_end=-0.25)


def test_the_contract_holds_with_early_end() -> None:
    check_env(Penalized, num_tasks=2, resets=50)


def test_the_task_budget_is_a_terminal_failure_and_a_collectors_cut_is_not() -> None:
    world, replies = run("blue", "inspect", "inspect", "inspect", budget=3)
    assert replies[-1].stop is StopReason.TASK_BUDGET
    assert world.potential() == 0.0
    cut, replies = run("blue", "inspect", "pickup_{}", budget=3)
    assert replies[-1].stop is None
    assert cut.potential() == pytest.approx(0.5)


def test_the_mask_offers_doors_only_with_a_key_and_keys_only_without() -> None:
    world, _ = run("red")
    assert world.allowed() == ("inspect", "pickup_red", "pickup_blue", "finish")
    with pytest.raises(UsageError, match="not possible now"):
        world.step(ToolCall(name="open_red"))
    world, _ = run("red", "pickup_blue")
    assert world.allowed() == ("inspect", "open_red", "open_blue", "finish")


def test_nothing_but_the_clue_tells_red_from_blue() -> None:
    """Leak test: for every action sequence, masks and observations of both doors agree until the clue or the end."""
    for names in product([spec.name for spec in KeyDoor().tools()], repeat=4):
        worlds = [KeyDoor(), KeyDoor()]
        openings = {world.reset(task(door), 0) for world, door in zip(worlds, COLOURS, strict=True)}
        assert len(openings) == 1
        for name in names:
            assert worlds[0].allowed() == worlds[1].allowed()
            assert len(worlds[0].tools()) == len(worlds[1].tools())
            if name not in worlds[0].allowed() or name.startswith("open"):
                break
            first, second = (world.step(ToolCall(name=name)) for world in worlds)
            assert first.stop == second.stop
            assert first.text.replace("red", "blue") == second.text
            if "clue" not in first.text:
                assert first.text == second.text
            if first.stop:
                break


def test_no_observation_names_the_carried_key() -> None:
    for door, key in product(COLOURS, COLOURS):
        _, replies = run(door, f"pickup_{key}")
        assert replies[0].text == "holding"


@pytest.mark.parametrize("budget", [4, 5, 6, 8])
def test_memory_is_worth_exactly_one_half(budget: int) -> None:
    """By hand: after the clue is out of sight one door must be opened blindly, and one of two opens."""
    assert optimum(budget) == 1.0
    assert memoryless_optimum(budget).value == 0.5


def test_with_three_steps_there_is_only_guessing_and_with_two_nothing() -> None:
    """Pickup, open, finish without looking: right for one of two colours."""
    assert optimum(3) == 0.5
    assert optimum(2) == 0.0


def test_random_stochastic_memoryless_policies_never_beat_the_memoryless_optimum() -> None:
    """The bound for stochastic policies, tried on mixtures of two deterministic ones at every information state."""
    world = model(5)
    best = memoryless_optimum(5)

    for weight in (0.0, 0.3, 0.5, 0.9):

        def mixed(history: History, weight: float = weight) -> list[float]:
            names = history[-1][0][1]
            call = best.policy.get(memoryless(history))
            at = names.index(call.name) if call else 0
            return [weight * (index == at) + (1 - weight) / len(names) for index in range(len(names))]

        assert expected_reward(world, mixed, horizon=5) <= best.value + 1e-12


def test_the_best_policy_earns_its_value_when_it_is_played() -> None:
    """The search's value against playing its policy in the environment itself."""
    for information, value in ((full, 1.0), (memoryless, 0.5)):
        best = best_deterministic(model(), information, horizon=BUDGET)
        earned = []
        for door in COLOURS:
            world = KeyDoor()
            history: History = ()
            text = world.reset(task(door), 0)
            while world.state.stop is None:
                seen = (text, world.allowed())
                call = best.policy[information((*history, (seen, None)))]
                history = (*history, (seen, call))
                text = world.step(call).text
            earned.append(world.verify().reward)
        assert sum(map(float, earned)) / 2 == value == best.value  # type: ignore[arg-type]


def test_a_uniform_policy_earns_what_enumeration_by_hand_gives() -> None:
    """Budget 4: only inspect-free orders fit twice; success needs pickup, open, finish with at most one idle step.

    Without idling: 1/4 * 1/4 * p(finish), with p(finish) = 1/4. With one idle step before pickup, before open or after
    open: inspect (1/4) twice, and after opening one of three calls that keep the door open (3/4).
    """
    direct = (1 / 4) ** 3
    idle = (1 / 4) ** 4 + (1 / 4) ** 4 + (1 / 4) ** 3 * (3 / 4)
    world = model(4)
    value = expected_reward(world, lambda history: [1 / 4] * len(history[-1][0][1]), horizon=4)
    assert value == pytest.approx(direct + idle, abs=1e-15)


def histories(world: FiniteModel, *names: str) -> list[History]:
    """The history of playing ``names`` for each colour, as a policy sees it."""
    found = []
    for node in world.start:
        history: History = ()
        for name in names:
            call = next(call for call in world.nodes[node].calls if call.name == name)
            history = (*history, (world.nodes[node].seen, call))
            node = world.successors[node][world.nodes[node].calls.index(call)]
        found.append((*history, (world.nodes[node].seen, None)))
    return found


def door_belief(world: FiniteModel, history: History) -> dict[str, float]:
    found: dict[str, float] = {}
    for node, chance in belief(world, history).items():
        state = world.nodes[node].snapshot
        assert isinstance(state, dict)
        found[str(state["door"])] = found.get(str(state["door"]), 0.0) + chance
    return found


def test_the_belief_is_even_before_the_clue_and_certain_after_it() -> None:
    world = model()
    before = histories(world, "pickup_red")[0]
    assert door_belief(world, before) == {"red": 0.5, "blue": 0.5}
    red, blue = histories(world, "inspect", "pickup_red", "inspect")
    assert door_belief(world, red) == {"red": 1.0}
    assert door_belief(world, blue) == {"blue": 1.0}


def test_a_window_that_drops_the_clue_loses_the_belief() -> None:
    """Two histories with different beliefs look the same through the window, so no function of it gives the belief."""
    world = model()
    red, blue = histories(world, "inspect", "pickup_red")
    assert window(1)(red) == window(1)(blue)
    assert door_belief(world, red) != door_belief(world, blue)
    assert window(2)(red) != window(2)(blue)


@pytest.mark.parametrize(("size", "value"), [(1, 0.5), (2, 1.0), (3, 1.0)])
def test_what_a_window_is_worth(size: int, value: float) -> None:
    assert best_deterministic(model(5), window(size), horizon=5).value == value


def values(world: FiniteModel, *, gamma: float, shaped: bool = False, naive: float = 0.0) -> list[dict[str, float]]:
    """``Q`` of every call in every state of the fully observed world, by backward recursion over the budget."""
    known: dict[int, float] = {}

    def reward(node: int, name: str, after: int) -> float:
        here, there = world.nodes[node], world.nodes[after]
        paid = there.reward if there.stop else 0.0
        if shaped:
            assert here.potential is not None
            assert there.potential is not None
            paid += gamma * there.potential - here.potential
        return paid + naive * (name == "inspect")

    def value(node: int) -> float:
        if node not in known:
            found = q(node)
            known[node] = max(found.values()) if found else 0.0
        return known[node]

    def q(node: int) -> dict[str, float]:
        pairs = zip(world.nodes[node].calls, world.successors[node], strict=True)
        return {call.name: reward(node, call.name, after) + gamma * value(after) for call, after in pairs}

    return [q(node) for node in range(len(world.nodes))]


def test_shaping_moves_every_value_by_the_potential_and_no_preference() -> None:
    """Ng, Harada and Russell (1999): Q_shaped(s, a) = Q(s, a) - potential(s), so the best calls stay the best."""
    world = model(6)
    plain, shaped = values(world, gamma=0.9), values(world, gamma=0.9, shaped=True)
    for node, before, after in zip(world.nodes, plain, shaped, strict=True):
        assert node.potential is not None
        for name in before:
            assert after[name] == pytest.approx(before[name] - node.potential, abs=1e-12)


def test_shaping_telescopes_to_the_boundary_terms() -> None:
    world = KeyDoor()
    world.reset(task("red"), 0)
    gamma, potentials = 0.9, [world.potential()]
    for name in ("inspect", "pickup_red", "open_red", "finish"):
        world.step(ToolCall(name=name))
        potentials.append(world.potential())
    total = sum(gamma**t * (gamma * potentials[t + 1] - potentials[t]) for t in range(4))
    assert total == pytest.approx(-potentials[0] + gamma**4 * potentials[4], abs=1e-12)
    assert potentials == [0.0, 0.25, 0.5, 0.75, 0.0]


def test_a_bonus_per_useful_looking_step_makes_looking_for_ever_the_best_policy() -> None:
    """With 0.1 per inspect and discount 0.8, the second look at a room already known beats going on."""
    world = model(8)
    again = next(
        index
        for index, node in enumerate(world.nodes)
        if node.snapshot
        == {
            "door": "red",
            "budget": 7,
            "inspected": True,
            "key": None,
            "opened": False,
            "invalid": 0,
            "stop": None,
        }
        and node.observation == "clue_red"
    )
    plain = values(world, gamma=0.8)[again]
    naive = values(world, gamma=0.8, naive=0.3)[again]
    assert max(plain, key=plain.__getitem__) == "pickup_red"
    assert max(naive, key=naive.__getitem__) == "inspect"


def test_components_that_mark_progress_are_paid_once() -> None:
    _, replies = run("red", "inspect", "inspect", "pickup_red", "open_red", "open_red", "open_blue", "finish")
    paid = [name for reply in replies for name in reply.rewards]
    assert [paid.count(name) for name in ("clue", "right_key", "door_open", "looked")] == [1, 1, 1, 2]


def test_tasks_alternate_colours_in_pairs_and_form_families() -> None:
    tasks = list(islice(KeyDoor.tasks("train", 0), 200))
    doors = [str(item.data["door"]) for item in tasks]
    assert [item.family for item in tasks] == doors
    assert all({*doors[at : at + 2]} == {*COLOURS} for at in range(0, 200, 2))
    assert len({tuple(doors[at : at + 2]) for at in range(0, 200, 2)}) == 2


def test_an_invalid_turn_costs_a_step_and_is_counted() -> None:
    world, _ = run("red", budget=2)
    assert world.invalid("?").text == "invalid"
    assert world.invalid("?").stop is StopReason.TASK_BUDGET
    assert world.verify().invalid_actions == 2
