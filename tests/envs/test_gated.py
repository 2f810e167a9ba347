"""A gate before irreversible tools: what is carried out, what is refused, and that each attempt stands in the log."""

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kifu.envs import (
    Attempts,
    Capabilities,
    Environment,
    Gate,
    Gated,
    GuardedEnvironment,
    Mode,
    Purpose,
    Reply,
    Snapshot,
    SnapshotKind,
    Status,
    Task,
    finite_calls,
    tool,
)
from kifu.errors import UsageError
from kifu.records import Json, ToolCall, Verdict
from kifu.sandbox import EffectFile, check_effects
from kifu.testing import check_env

GATES = {
    "buy": Gate(allow={"shop": ("inn", "*@ours.example")}, most={"price": 50}, total={"price": 80}, calls=3),
    "delete": Gate(calls=0),
}


class Till(Environment):
    """Buys things and can be looked at; nothing in it can be taken back."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self) -> None:
        self.bought: list[Json] = []

    def reset(self, task: Task, seed: int) -> str:
        self.bought = []
        return "Buy something."

    @tool(command="buy {price} at {shop}")
    def buy(self, price: float, shop: str) -> Reply:
        """Buy.

        Args:
            price: what it costs.
            shop: where.
        """
        if shop == "broken@ours.example":
            raise RuntimeError("the line is dead")
        self.bought.append([price, shop])
        return Reply(text="bought", error="out of stock" if price == 13 else None)

    @tool
    def look(self) -> str:
        """Look at what was bought."""
        return json.dumps(self.bought)

    @tool
    def delete(self) -> str:
        """Delete everything."""
        self.bought.clear()
        return "gone"

    def verify(self) -> Verdict:
        return Verdict(success=[40, "inn"] in self.bought)

    def snapshot(self) -> Snapshot:
        return list(self.bought)

    def restore(self, ref: Snapshot) -> None:
        assert isinstance(ref, list)
        self.bought = list(ref)

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        return ToolCall(name="look"), _buy(40), "done"


class TwoPhase(Gated, Till):
    gates: ClassVar = GATES

    def purpose(self, call: ToolCall) -> Purpose:
        return Purpose.ASKED if call.arguments.get("shop") == "inn" else Purpose.UNASKED


class Shadow(Gated, Till):
    gates: ClassVar = GATES
    mode: ClassVar[Mode] = Mode.SHADOW

    def verify(self) -> Verdict:
        return Verdict(
            success=any(item.arguments == {"price": 40, "shop": "inn"} for item in self.attempts.carried_out)
        )


class Direct(Gated, Till):
    gates: ClassVar = GATES
    mode: ClassVar[Mode] = Mode.DIRECT


class Later(Till):
    """The same with an awaited tool and a snapshot of bytes."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.BYTES)

    async def _buy(self, price: float, shop: str) -> Reply:
        await asyncio.sleep(0)
        return super().buy(price, shop)

    def step(self, call: ToolCall) -> Reply | str | Awaitable[Reply | str]:
        return self._buy(**call.arguments) if call.name == "buy" else super().step(call)  # type: ignore[arg-type]

    def snapshot(self) -> Snapshot:
        return json.dumps(self.bought).encode()

    def restore(self, ref: Snapshot) -> None:
        assert isinstance(ref, bytes)
        self.bought = json.loads(ref)


class GatedLater(Gated, Later):
    gates: ClassVar = GATES


def _buy(price: Json, shop: Json = "inn") -> ToolCall:
    return ToolCall(name="buy", arguments={"price": price, "shop": shop})


def _confirm(number: int) -> ToolCall:
    return ToolCall(name="confirm", arguments={"number": number})


def _cancel(number: int) -> ToolCall:
    return ToolCall(name="cancel", arguments={"number": number})


async def _played(
    cls: type[Environment], calls: list[ToolCall], log: EffectFile | None = None
) -> tuple[Environment, list[Reply]]:
    made: list[Environment] = []

    def make() -> Environment:
        made.append(cls())
        return made[0]

    guard = GuardedEnvironment(make, effects=None if log is None else log.chain("episode"))
    await guard.reset(Task(id="t"), 0)
    replies = [(await guard.call(call)).reply for call in calls]
    await guard.close()
    return made[0], replies


def _lines(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line)["content"] for line in path.read_bytes().splitlines()]
    return [line for line in found if line["kind"] == "irreversible"]


async def test_nothing_happens_before_it_is_confirmed() -> None:
    for calls, bought in (
        ([_buy(40)], []),
        ([_buy(40), _cancel(1), _confirm(1)], []),
        ([_buy(40), _confirm(2)], []),
        ([_confirm(1)], []),
        ([_buy(40), _confirm(1)], [[40, "inn"]]),
        ([_buy(40), _confirm(1), _confirm(1)], [[40, "inn"]]),
        ([_buy(40), _buy(30), _confirm(2)], [[30, "inn"]]),
    ):
        world, _ = await _played(TwoPhase, calls)
        assert isinstance(world, Till)
        assert world.bought == bought, calls


@pytest.mark.parametrize("cls", [TwoPhase, Shadow, Direct])
@pytest.mark.parametrize(
    "call",
    [
        _buy(51),
        _buy(0),
        _buy(-5),
        _buy(True),
        _buy(float("inf")),
        _buy(float("nan")),
        _buy(5, "Inn"),
        _buy(5, "inn "),
        _buy(5, "evil@theirs.example\n@ours.example"),
        _buy(5, "evil@theirs.example,x@ours.example"),
        _buy(5, "\u0430nn@ours.example"),
        _buy(5, "inn@ours.example.theirs"),
        ToolCall(name="delete"),
    ],
)
async def test_attack_on_lists_and_limits_is_refused_in_every_mode(cls: type[Gated], call: ToolCall) -> None:
    world, _ = await _played(cls, [_buy(20), call, _confirm(2)] if cls is TwoPhase else [_buy(20), call])
    assert isinstance(world, Till)
    assert world.bought == ([[20, "inn"]] if cls is Direct else [])
    if call.arguments.get("price") in (True, float("inf")) or call.arguments.get("price", 0) != call.arguments.get(
        "price", 0
    ):
        return  # no number of JSON, so it was no attempt
    assert isinstance(world, Gated)
    assert world.attempts.items[1].status is Status.REFUSED


async def test_sums_are_checked_again_when_something_is_confirmed() -> None:
    """Two purchases of 50 fit one by one; both together exceed 80."""
    calls = [_buy(50), _buy(50), _confirm(1), _confirm(2), _buy(30), _confirm(3)]
    world, replies = await _played(TwoPhase, calls)
    assert isinstance(world, TwoPhase)
    assert world.bought == [[50, "inn"], [30, "inn"]]
    assert "at most 80 in all" in str(replies[3].error)
    assert [item.status for item in world.attempts.items] == ["executed", "refused", "executed"]


async def test_calls_are_counted_and_so_are_attempts() -> None:
    world, replies = await _played(Direct, [_buy(1)] * 12)
    assert isinstance(world, Till)
    assert len(world.bought) == 3
    assert sum(reply.error is not None for reply in replies) == 9
    assert "at most 9 attempts" in str(replies[-1].error)


async def test_a_shadow_answers_and_judges_as_if_and_does_nothing() -> None:
    world, replies = await _played(Shadow, [_buy(40), ToolCall(name="look")])
    assert isinstance(world, Shadow)
    assert [reply.text for reply in replies] == ["Done.", "[]"]
    assert world.bought == []
    assert world.verify().success is True


async def test_every_attempt_is_in_the_log_with_what_became_of_it(tmp_path: Path) -> None:
    file = EffectFile(tmp_path / "effects.jsonl")
    calls = [_buy(99), _buy(40), _confirm(2), _buy(5, "a@ours.example"), _cancel(3), _confirm(3), _buy(13), _confirm(4)]
    await _played(TwoPhase, calls, file)
    file.close()
    lines = _lines(file.path)
    assert [(line["phase"], line["tool"], line["facts"].get("status")) for line in lines] == [
        ("note", "buy", "refused"),
        ("note", "buy", "prepared"),
        ("begin", "buy", "executed"),
        ("end", "buy", None),
        ("note", "buy", "prepared"),
        ("note", "buy", "cancelled"),
        ("note", "confirm", "refused"),
        ("note", "buy", "prepared"),
        ("begin", "buy", "executed"),
        ("end", "buy", None),
    ]
    assert lines[0]["facts"]["checks"]["`price` is at most 50"] is False
    assert lines[2]["arguments"] == {"price": 40, "shop": "inn"}
    assert (lines[2]["facts"]["confirmed"], lines[2]["facts"]["purpose"]) == (True, "asked")
    assert lines[4]["facts"]["purpose"] == "unasked"
    assert [line["facts"]["reason"] for line in lines if line["phase"] == "end"] == ["done", "error"]
    assert check_effects(file.path).problems == ()


async def test_what_is_carried_out_at_once_is_logged_as_unconfirmed_and_a_crash_as_failed(tmp_path: Path) -> None:
    file = EffectFile(tmp_path / "effects.jsonl")
    with pytest.raises(Exception, match="the line is dead"):
        await _played(Direct, [_buy(1), _buy(1, "broken@ours.example")], file)
    file.close()
    lines = _lines(file.path)
    assert [line["facts"]["confirmed"] for line in lines if line["phase"] == "begin"] == [False, False]
    assert [line["facts"]["reason"] for line in lines if line["phase"] == "end"] == ["done", "failed"]


async def test_awaited_tools_and_snapshots_of_bytes_pass_through(tmp_path: Path) -> None:
    file = EffectFile(tmp_path / "effects.jsonl")
    world, replies = await _played(GatedLater, [_buy(40), _confirm(1)], file)
    file.close()
    assert isinstance(world, GatedLater)
    assert replies[1].text == "bought"
    assert [line["phase"] for line in _lines(file.path)] == ["note", "begin", "end"]
    other = GatedLater()
    other.reset(Task(id="t"), 0)
    other.restore(json.loads(json.dumps(world.snapshot())))
    assert (other.bought, other.attempts) == ([[40, "inn"]], world.attempts)
    assert other.state_digest() == world.state_digest()


@pytest.mark.parametrize("cls", [TwoPhase, Shadow, Direct, GatedLater])
def test_a_gated_environment_keeps_the_contract(cls: type[Environment]) -> None:
    check_env(cls, [Task(id="t")], resets=50)
    assert cls.capabilities.effects


def test_what_is_prepared_is_part_of_the_state() -> None:
    world = TwoPhase()
    world.reset(Task(id="t"), 0)
    before = world.state_digest()
    world.step(_buy(40))
    assert world.state_digest() != before


def test_the_mask_offers_a_confirmation_while_something_waits_for_it() -> None:
    world = TwoPhase()
    world.reset(Task(id="t"), 0)
    assert world.allowed() == ("buy", "look", "delete")
    world.step(_buy(40))
    assert world.allowed() is None
    confirm = next(spec for spec in world.tools() if spec.name == "confirm")
    assert len(finite_calls([confirm]) or ()) == 9
    assert "confirm carries it out" in world.tools()[0].description
    assert [spec.name for spec in Shadow().tools()] == ["buy", "look", "delete"]


def test_a_gate_that_names_no_tool_and_a_limit_that_is_none_are_refused() -> None:
    class Wrong(Gated, Till):
        gates: ClassVar = {"bye": Gate()}

    with pytest.raises(UsageError, match=r"gates name `bye`.*did you mean `buy`"):
        Wrong().reset(Task(id="t"), 0)
    with pytest.raises(UsageError, match="limit of `price` is nan"):
        Gate(most={"price": float("nan")})
    with pytest.raises(UsageError, match="attempts are"):
        Attempts.from_json([{"number": 1}])
    with pytest.raises(UsageError, match="expected world and attempts"):
        TwoPhase().restore([])
