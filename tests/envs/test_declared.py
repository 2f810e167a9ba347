"""What an environment declares and answers outside of rollouts is checked before a run starts."""

from typing import Any

import pytest

from kifu.envs import Environment, Reply, Task
from kifu.envs.declared import asking, check_declared, tool_names
from kifu.envs.registry import ENVIRONMENTS
from kifu.errors import EnvironmentFailure, RecordError, UsageError


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
