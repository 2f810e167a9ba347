"""The plain strategy against a world and a policy that note what they are asked."""

from collections.abc import Sequence

import pytest

from kifu.agents import AGENTS, ToolCallingAgent
from kifu.envs import Task, ToolSpec
from kifu.records import ToolCall, ToolResult
from kifu.render import Parsed


class Notes:
    """Both the world and the policy of an agent; the tool `end` ends the episode."""

    tools: Sequence[ToolSpec] = ()

    def __init__(self, turns: Sequence[Parsed], *, cut_at: int | None = None) -> None:
        self.turns = list(turns)
        self.cut_at = cut_at
        self.written = 0
        self.ended = False
        self.log: list[tuple[str, object]] = []

    async def write(self) -> Parsed:
        self.log.append(("write", self.written))
        if self.written == self.cut_at:
            self.ended = True
            return Parsed(text="")
        self.written += 1
        return self.turns[self.written - 1]

    async def call(self, calls: Sequence[ToolCall], *, rewriter: str | None = None) -> list[ToolResult]:
        assert rewriter is None
        self.log.append(("call", [call.name for call in calls]))
        found = []
        for index, call in enumerate(calls):
            found.append(ToolResult(call=index, text=f"{call.name} done"))
            if call.name == "end":
                self.ended = True
                break
        return found

    async def reject(self, error: str) -> ToolResult:
        self.log.append(("reject", error))
        return ToolResult(call=None, text=f"Error: {error}")

    async def finish(self, text: str) -> None:
        self.log.append(("finish", text))
        self.ended = True

    def show(self, texts: Sequence[str]) -> None:
        self.log.append(("show", list(texts)))


def calling(*names: str) -> Parsed:
    return Parsed(text=" ".join(names), calls=tuple(ToolCall(name=name) for name in names))


@pytest.mark.parametrize(
    ("turns", "cut_at", "expected"),
    [
        (
            [calling("a", "b"), Parsed(text="?", error="not a command"), Parsed(text="the answer")],
            None,
            [
                ("write", 0),
                ("call", ["a", "b"]),
                ("show", ["a done", "b done"]),
                ("write", 1),
                ("reject", "not a command"),
                ("show", ["Error: not a command"]),
                ("write", 2),
                ("finish", "the answer"),
            ],
        ),
        ([calling("end", "a")], None, [("write", 0), ("call", ["end", "a"])]),
        ([calling("a")], 1, [("write", 0), ("call", ["a"]), ("show", ["a done"]), ("write", 1)]),
        ([], 0, [("write", 0)]),
    ],
    ids=["calls, an unreadable turn, an answer", "the world ends", "a limit", "a limit at once"],
)
async def test_the_strategy_acts_until_the_episode_ends(
    turns: list[Parsed], cut_at: int | None, expected: list[tuple[str, object]]
) -> None:
    notes = Notes(turns, cut_at=cut_at)

    await ToolCallingAgent().run(Task(id="t"), notes, notes)

    assert notes.log == expected


async def test_an_episode_that_is_over_is_not_written_in() -> None:
    notes = Notes([])
    notes.ended = True

    await ToolCallingAgent().run(Task(id="t"), notes, notes)

    assert notes.log == []


def test_every_agent_names_itself_with_a_version() -> None:
    assert [agent.id.rpartition("/")[2].isdigit() for agent in AGENTS.values()] == [True] * len(AGENTS)
    assert AGENTS["tool_calling"] is ToolCallingAgent
