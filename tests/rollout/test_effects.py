"""Every call of an episode stands in the run's log of effects, and the record names the last line of each turn."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

from kifu.envs import Environment, GuardedEnvironment, Reply, Task, tool
from kifu.records import RolloutKey, StopReason, ToolCall, Trajectory, Verdict, content_digest
from kifu.rollout import Departure, Script, Setting
from kifu.rollout.run import _chain
from kifu.rollout.session import EFFECTS_END, EFFECTS_HEAD
from kifu.sandbox import EffectFile, EffectHead, check_effects

Attempt: TypeAlias = Callable[..., Awaitable[Trajectory]]
MakeSetting: TypeAlias = Callable[..., Setting]


class Shop(Environment):
    """Sells until nothing is left; writes a line of its own for each sale."""

    id = "shop"

    def __init__(self) -> None:
        self.sold = 0

    def reset(self, task: Task, seed: int) -> str:
        return "Open."

    @tool(command="sell {count}")
    def sell(self, count: int) -> Reply:
        """Sell.

        Args:
            count: how many.
        """
        if count > 5:
            raise RuntimeError("the till is broken")
        self.sold += count
        if self.effect_log is not None:
            self.effect_log.note("sale", facts={"count": count})
        return Reply(text=f"sold {count}", stop=StopReason.SUCCESS if self.sold >= 4 else None)

    def verify(self) -> Verdict:
        return Verdict(success=self.sold >= 4)


def _sales(*counts: int) -> Script:
    return Script(calls=tuple(ToolCall(name="sell", arguments={"count": count}) for count in counts))


def _heads(found: Trajectory) -> list[EffectHead]:
    return [
        EffectHead(**event.detail)  # type: ignore[arg-type]
        for turn in found.turns
        for event in turn.events
        if event.kind == EFFECTS_HEAD
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["content"] for line in path.read_bytes().splitlines()]


async def test_calls_are_written_before_and_after_and_heads_go_on_record(
    tmp_path: Path, attempt: Attempt, make_setting: MakeSetting
) -> None:
    path = tmp_path / "effects.jsonl"
    file = EffectFile(path)
    found = await attempt(make_setting(Shop, effects=file), _sales(1, 3))
    file.close()

    lines = _lines(path)
    assert [(line["phase"], line["kind"]) for line in lines] == 2 * [
        ("begin", "environment"),
        ("note", "sale"),
        ("end", "environment"),
    ]
    assert lines[0]["arguments"] == {"count": 1}
    assert [line["facts"]["reason"] for line in lines if line["phase"] == "end"] == ["done", "done"]
    assert lines[5]["facts"]["stop"] == "success"
    heads = _heads(found)
    assert [head.count for head in heads] == [3, 6]
    assert {head.chain for head in heads} == {found.id}
    assert check_effects(path, anchors=heads).problems == ()
    path.write_bytes(b"".join(line + b"\n" for line in path.read_bytes().splitlines()[:-1]))
    assert check_effects(path, anchors=heads).problems


async def test_a_call_that_breaks_and_one_that_does_not_fit_are_ended_as_such(
    tmp_path: Path, attempt: Attempt, make_setting: MakeSetting
) -> None:
    path = tmp_path / "effects.jsonl"
    file = EffectFile(path)
    found = await attempt(make_setting(Shop, effects=file), _sales(9))
    guard = GuardedEnvironment(Shop, effects=file.chain("alone"))
    await guard.reset(Task(id="t"), 0)
    await guard.call(ToolCall(name="sell", arguments={"count": "many"}))
    await guard.close()
    file.close()
    assert found.outcome.reason is StopReason.ENV_ERROR
    report = check_effects(path, anchors=_heads(found))
    assert report.problems == ()
    assert report.reasons == {"refused": 1, "failed": 1}
    assert report.interrupted == ()


async def test_the_record_is_the_same_whatever_else_the_log_holds(
    tmp_path: Path, attempt: Attempt, make_setting: MakeSetting
) -> None:
    """The head is a function of the episode, so equal episodes stay equal records."""
    digests = []
    for name in ("a", "b"):
        file = EffectFile(tmp_path / name)
        if name == "b":
            file.chain("other").note("something")
        digests.append(content_digest(await attempt(make_setting(Shop, effects=file), _sales(1, 3))))
        file.close()
    assert digests[0] == digests[1]


async def test_an_episode_that_is_attempted_again_gets_a_chain_of_its_own(
    tmp_path: Path, attempt: Attempt, make_setting: MakeSetting
) -> None:
    file = EffectFile(tmp_path / "effects.jsonl")
    setting = make_setting(Shop, effects=file)
    first, second = await attempt(setting, _sales(4)), await attempt(setting, _sales(4))
    file.close()
    assert {head.chain for head in _heads(first)} == {first.id}
    assert {head.chain for head in _heads(second)} == {f"{first.id}~2"}


async def test_a_branch_begins_where_its_parent_stood(
    tmp_path: Path, attempt: Attempt, make_setting: MakeSetting
) -> None:
    file = EffectFile(tmp_path / "effects.jsonl")
    setting = make_setting(Shop, effects=file)
    parent = await attempt(setting, _sales(1, 1, 2))
    key = RolloutKey(seed=7, step=0, group=0, member=1)
    chain = _chain(setting, key, Departure(parent=parent, turn=2, chosen_by="test"))
    assert chain is not None
    chain.note("here")
    file.close()
    second = _heads(parent)[1]
    content = _lines(tmp_path / "effects.jsonl")[-1]
    assert content["previous"] == second.digest
    assert content["parent"] == {"chain": parent.id, "count": 6}
    assert check_effects(tmp_path / "effects.jsonl", anchors=[*_heads(parent), chain.head]).problems == ()


class Closing(Shop):
    """Writes a line when it is judged and one when it is closed."""

    def verify(self) -> Verdict:
        assert self.effect_log is not None
        self.effect_log.note("judged")
        return super().verify()

    def close(self) -> None:
        assert self.effect_log is not None
        self.effect_log.note("closed")


async def test_the_last_turn_names_the_last_line_of_the_episode(
    tmp_path: Path, attempt: Attempt, make_setting: MakeSetting
) -> None:
    path = tmp_path / "effects.jsonl"
    file = EffectFile(path)
    found = await attempt(make_setting(Closing, effects=file), _sales(1, 3))
    file.close()
    ends = [(turn.index, event.detail) for turn in found.turns for event in turn.events if event.kind == EFFECTS_END]
    last = json.loads(path.read_bytes().splitlines()[-1])
    assert last["content"]["kind"] == "closed"
    assert ends == [(1, {"chain": found.id, "digest": last["digest"], "count": 8})]


async def test_without_a_log_nothing_is_noted(attempt: Attempt, make_setting: MakeSetting) -> None:
    assert _heads(await attempt(make_setting(Shop), _sales(4))) == []
