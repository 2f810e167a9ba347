"""What is optimal in key_door under three rewards, against enumeration of its plans, and the page's table."""

import importlib.util
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

from kifu.envs.suites.key_door import BUDGET, State, model, transition

TOP = Path(__file__).resolve().parents[2]
SCRIPT = TOP / "benchmarks" / "shaping_loop.py"
GAMMA = 0.99


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shaping_loop", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def worth(plan: tuple[str, ...], look: float) -> float:
    """Discounted return of a plan; ``key`` and ``door`` mean those of the colour, which a first look has told."""
    state, total, factor = State(door="red"), 0.0, 1.0
    for step in plan:
        action = {"look": "inspect", "key": "pickup_red", "door": "open_red"}.get(step, step)
        if step in ("key", "door") and not state.inspected:
            return -1.0
        if (step == "key" and state.key) or (step == "door" and not state.key):
            return -1.0
        state, reply = transition(state, action)
        total += factor * (look * reply.rewards.get("looked", 0.0) + (state.opened and reply.stop == "success"))
        factor *= GAMMA
        if state.stop is not None:
            return total
    return total


@pytest.mark.parametrize("look", [0.0, 0.005, 0.1, 0.3, 0.35, 1.0])
def test_the_optimum_with_eight_steps_is_that_of_the_best_plan(script: ModuleType, look: float) -> None:
    """A guessed colour is right half the time: worse than looking first, whatever a look pays."""
    plans = list(product(("look", "key", "door", "finish"), repeat=BUDGET))
    best = max(plans, key=lambda plan: worth(plan, look))
    pay = script.pay_all([script.pay_verdict, script.pay_components({"looked": look})])
    found, course = script.solve(model(), pay)

    assert found.value == pytest.approx(worth(best, look), abs=1e-12)
    said = {"look": "inspect", "key": "pickup", "door": "open", "finish": "finish"}
    own = tuple(call.partition("_")[0] for call in course.calls)
    assert worth(tuple(next(k for k, v in said.items() if v == call) for call in own), look) == pytest.approx(
        found.value, abs=1e-12
    )


def test_a_naive_reward_loops_and_shaping_keeps_every_optimal_call(script: ModuleType) -> None:
    for world in (model(), script.endless()):
        plain, course = script.solve(world, script.rewards()["sparse"])
        shaped, same = script.solve(world, script.rewards()["shaped"])
        assert course.calls[0] == "inspect"
        assert course.calls.count("inspect") == 1
        assert (len(course.calls), course.ends) == (4, True)
        assert same == course
        assert shaped.calls == plain.calls
        assert len(plain.calls) >= 48


def test_the_naive_optimum_uses_up_the_budget_with_looking_and_never_ends_without_one(script: ModuleType) -> None:
    _, tight = script.solve(model(), script.rewards()["naive 0.1"])
    _, free = script.solve(script.endless(), script.rewards()["naive 0.1"])
    assert tight.calls.count("inspect") == BUDGET - 3
    assert len(tight.calls) == BUDGET
    assert (free.ends, set(free.calls)) == (False, {"inspect"})


@pytest.mark.parametrize(("share", "ends"), [(0.99, True), (1.01, False)])
def test_a_look_need_only_pay_a_hundredth_for_the_loop(script: ModuleType, share: float, ends: bool) -> None:
    """Looking for ever is worth w / (1 - gamma), finishing from where the colour is known gamma^2."""
    assert script.threshold() == pytest.approx(0.009801)
    pay = script.pay_all([script.pay_verdict, script.pay_components({"looked": share * script.threshold()})])
    _, course = script.solve(script.endless(), pay)
    assert course.ends is ends


def test_the_page_holds_the_table_that_the_script_prints(script: ModuleType) -> None:
    assert script.proof() in (TOP / "docs" / "results" / "shaping.md").read_text()


@pytest.mark.slow
def test_a_policy_learns_the_loop_it_is_paid_for(script: ModuleType, tmp_path: Path) -> None:
    """Nearly every episode looks again where looking pays, and hardly any where it is shaped or only the end pays."""
    found = {name: script.run(name, seed=0, steps=120, folder=tmp_path)["curve"][-1] for name in script.VARIANTS}
    assert found["naive 1"]["loops"] > 0.9
    assert found["naive 1"]["success"] < 0.1
    assert found["naive 0.1"]["loops"] > 0.8
    assert max(found["sparse"]["loops"], found["shaped"]["loops"]) < 0.5
