"""A rewritten call leaves both in the record, and what was sampled is what is trained."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from kifu.agents import EnumArguments, ToolCallingAgent
from kifu.envs import Environment, Reply, Task, tool
from kifu.models import ModelFolder
from kifu.policy import ScriptedSampler
from kifu.records import Origin, StopReason, ToolCall, Trajectory, Verdict, from_row, pre_update_check, to_row
from kifu.render import DIALECTS, load_renderer
from kifu.rollout import Limits, Setting

MakeSetting: TypeAlias = Callable[..., Setting]
Attempt: TypeAlias = Callable[..., Awaitable[Trajectory]]
Says: TypeAlias = Callable[..., ScriptedSampler]
Spell: TypeAlias = Callable[[str], list[int]]


class Doors(Environment):
    """Opens for the red key alone."""

    id = "doors"

    def __init__(self) -> None:
        self.heard: list[str] = []

    def reset(self, task: Task, seed: int) -> str:
        self.heard = []
        return "Doors."

    @tool(command="try {color}")
    def attempt(self, color: Literal["red", "blue"]) -> Reply:
        """Try a key.

        Args:
            color: of the key.
        """
        self.heard.append(color)
        return Reply(text=f"{color}!", stop=StopReason.SUCCESS if color == "red" else None)

    def verify(self) -> Verdict:
        return Verdict(success="red" in self.heard, verifier="doors/1")


def written(color: str) -> str:
    """The call in the json dialect."""
    return f'{{"tool": "attempt", "color": "{color}"}}'


def sampled(record: Trajectory) -> list[int]:
    return [
        token
        for tape in record.tapes
        for span in tape.spans
        if span.origin is Origin.POLICY
        for token in span.token_ids
    ]


async def test_both_calls_are_recorded_and_the_sampled_tokens_stay(
    make_setting: MakeSetting, attempt: Attempt, says: Says, spell: Spell, tiny_model: ModelFolder
) -> None:
    setting = make_setting(
        Doors,
        agent=ToolCallingAgent(EnumArguments()),
        renderer=load_renderer(tiny_model.path, dialect=DIALECTS["json"]),
        max_new_tokens=96,
        limits=Limits(turns=3),
    )
    blue, red = (written(color) for color in ("blue", "RED"))

    found = await attempt(setting, says(blue, red))

    first, last = (turn.action for turn in found.turns)
    assert (first.sampled, first.rewriter) == (first.executed, None)
    assert last.sampled == (ToolCall(name="attempt", arguments={"color": "RED"}),)
    assert last.executed == (ToolCall(name="attempt", arguments={"color": "red"}),)
    assert last.rewriter == "enum_arguments/1"
    assert sampled(found) == [*spell(blue), *spell(red)]
    assert (found.outcome.reason, found.reward) == (StopReason.SUCCESS, 1.0)
    assert pre_update_check(found) == []
    assert from_row(to_row(found)).turns[1].action == last


async def test_without_the_rule_nothing_is_rewritten(
    make_setting: MakeSetting, attempt: Attempt, says: Says, tiny_model: ModelFolder
) -> None:
    renderer = load_renderer(tiny_model.path, dialect=DIALECTS["json"])

    setting = make_setting(Doors, renderer=renderer, max_new_tokens=96, limits=Limits(turns=1))
    found = await attempt(setting, says(written("RED")))

    action = found.turns[0].action
    assert action.rewriter is None
    assert action.sampled == action.executed == (ToolCall(name="attempt", arguments={"color": "RED"}),)
    assert found.outcome.reason is StopReason.TURN_LIMIT
