"""What an environment declares and answers outside of rollouts is checked before a run starts."""

from typing import Any

import pytest

from kifu.envs import Component, Environment, Reply, Task
from kifu.envs.declared import asking, check_components, check_declared, tool_names
from kifu.envs.registry import ENVIRONMENTS
from kifu.errors import EnvironmentFailure, ExperimentError, RecordError, UsageError
from kifu.records import ToolCall


@pytest.mark.parametrize("environment", ENVIRONMENTS.values())
def test_every_built_in_environment_declares_itself_well(environment: type[Environment]) -> None:
    check_declared(environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 3),
        ("id", "\ud800"),
        ("version", 2),
        ("instructions", None),
        ("capabilities", None),
        ("vocabulary", "dark bright"),
        ("vocabulary", (1, 2)),
        ("facts", {"success": 3}),
        ("components", {"clue": "paid once"}),
        ("components", ("clue",)),
    ],
)
def test_a_declaration_of_the_wrong_type_is_named(name: str, value: object) -> None:
    world = type("World", (Environment,), {name: value})
    with pytest.raises(UsageError, match=f"environment `World`: {name} is"):
        check_declared(world)


def test_tools_must_be_tool_specs() -> None:
    class World(Environment):
        def tools(self) -> Any:  # noqa: ANN401 (wrong on purpose)
            return ["left"]

    with pytest.raises(TypeError, match="must return ToolSpecs"):
        tool_names(World())


def test_what_an_environment_raises_is_its_own_failure_and_a_usage_error_stays_one() -> None:
    with (
        pytest.raises(EnvironmentFailure, match="asked for tools: raised ZeroDivisionError"),
        asking("asked for tools"),
    ):
        _ = 1 // 0
    with pytest.raises(UsageError, match="no such split"), asking("asked for tasks"):
        raise UsageError("no such split")


@pytest.mark.parametrize(
    "fields", [{"id": 3}, {"id": "\ud800"}, {"id": "a", "family": 1}, {"id": "a", "seed": 1 << 80}]
)
def test_a_task_that_no_record_can_name_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="task"):
        Task(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"trust": "evil"}, {"exit_status": "x"}, {"exit_status": 1 << 40}, {"stop": "zzz"}, {"rewards": {3: 1.0}}],
)
def test_a_reply_that_no_record_can_hold_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=r"reply|trust"):
        Reply(text="ok", **fields)


DECLARED: dict[str, Any] = {
    "scores": "a clue",
    "labeller": "the rule",
    "is_checkable": True,
    "needs_continuation": False,
    "is_repeatable": False,
    "changes_optimum": True,
}


class TestComponents:
    @pytest.mark.parametrize("missing", DECLARED)
    def test_all_six_declarations_are_needed(self, missing: str) -> None:
        with pytest.raises(TypeError, match=missing):
            Component(**{name: value for name, value in DECLARED.items() if name != missing})

    @pytest.mark.parametrize(
        ("name", "value"), [("scores", " "), ("labeller", ""), ("is_repeatable", "no"), ("changes_optimum", 0)]
    )
    def test_a_declaration_says_something(self, name: str, value: object) -> None:
        with pytest.raises(RecordError, match=name):
            Component(**{**DECLARED, name: value})

    def test_what_nobody_pays_is_named_with_the_nearest(self) -> None:
        world = ENVIRONMENTS["key_door"]
        check_components(world, ["clue", "looked"], where="credit.components")
        with pytest.raises(
            ExperimentError, match=r"credit\.components: .*`key_door`.*`loked`; did you mean `looked`\?"
        ):
            check_components(world, ["clue", "loked"], where="credit.components")

    def test_an_environment_that_declares_none_pays_none(self) -> None:
        with pytest.raises(ExperimentError, match="declares none"):
            check_components(ENVIRONMENTS["corridor"], ["clue"], where="here")

    def test_only_the_naive_reward_for_looking_can_be_paid_twice(self) -> None:
        world = ENVIRONMENTS["key_door"]
        assert {name for name, item in world.components.items() if item.is_repeatable} == {"looked"}
        for name in world.components:
            episodes = _paid(name, ("inspect", "inspect", "pickup_red", "open_red", "open_red", "inspect"))
            assert (episodes > 1) == world.components[name].is_repeatable


def _paid(component: str, actions: tuple[str, ...]) -> int:
    """How often an episode behind a red door is paid a component."""
    world = ENVIRONMENTS["key_door"]()
    world.reset(Task(id="t", data={"door": "red"}), 0)
    replies = [world.step(ToolCall(name=action)) for action in actions]
    return sum(component in reply.rewards for reply in replies if isinstance(reply, Reply))
