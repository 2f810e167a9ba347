"""The rule that puts listed arguments right: what it changes, and everything it leaves alone."""

import pytest

from kifu.agents import REPAIRS, EnumArguments, ToolCallingAgent
from kifu.envs import ToolSpec
from kifu.records import Json, ToolCall

PICK = ToolSpec(
    name="pick",
    description="Pick a key.",
    parameters={
        "type": "object",
        "properties": {
            "color": {"enum": ["red", "Blue"]},
            "size": {"enum": ["S", "s", 3]},
            "note": {"type": "string"},
        },
    },
)


@pytest.mark.parametrize(
    ("arguments", "executed"),
    [
        ({"color": " RED "}, {"color": "red"}),
        ({"color": "blue\n", "note": " RED "}, {"color": "Blue", "note": " RED "}),
        ({"color": "red"}, {"color": "red"}),
        ({"color": "green"}, {"color": "green"}),
        ({"color": "re d"}, {"color": "re d"}),
        ({"color": 3, "other": "RED"}, {"color": 3, "other": "RED"}),
        ({"size": "S "}, {"size": "S "}),  # two listed values are alike
        ({"size": "3"}, {"size": "3"}),
    ],
)
def test_only_case_and_outer_spaces_of_a_listed_value_are_put_right(
    arguments: dict[str, Json], executed: dict[str, Json]
) -> None:
    call = ToolCall(name="pick", arguments=arguments, id="c1")
    assert EnumArguments()([call], [PICK]) == (ToolCall(name="pick", arguments=executed, id="c1"),)


def test_a_tool_that_is_not_offered_is_left_alone() -> None:
    call = ToolCall(name="drop", arguments={"color": "RED"})
    assert EnumArguments()([call], [PICK]) == (call,)


def test_an_agent_that_repairs_is_another_controller() -> None:
    assert ToolCallingAgent().id == "tool_calling/1"
    assert ToolCallingAgent(REPAIRS["enum_arguments/1"]()).id == "tool_calling/1+enum_arguments/1"
