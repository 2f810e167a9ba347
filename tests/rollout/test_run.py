"""How episodes end: every limit by its own name, every failure at its boundary, every instance closed once."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, TypeAlias

import numpy as np
import pytest

from kifu.agents import PolicyHandle, World
from kifu.algorithms import build_algorithm
from kifu.credit.reading import RewardRules, read_episode
from kifu.engines import build_engine
from kifu.envs import Environment, Reply, Task, tool
from kifu.envs.suites.corridor import Corridor
from kifu.policy import EngineSpec, Generation, Request, ScoreRequest, Scores, ScriptedSampler
from kifu.records import Finish, Group, Origin, StopReason, TaskRef, Trajectory, Verdict, as_floats, as_ints
from kifu.records.ledger import Bucket
from kifu.render import ChatRenderer, SymbolRenderer
from kifu.rollout import Limits, Script, Setting
from kifu.sandbox import SandboxUnavailable
from kifu.training.update.assemble import assemble

MakeSetting: TypeAlias = Callable[..., Setting]
Attempt: TypeAlias = Callable[..., Awaitable[Trajectory]]
Says: TypeAlias = Callable[..., ScriptedSampler]
Spell: TypeAlias = Callable[[str], list[int]]


class Counted(Environment):
    """Every tool call is answered; counts instances that were made and closed."""

    id = "counted"
    instances: ClassVar[list["Counted"]] = []

    def __init__(self) -> None:
        self.closed = 0
        type(self).instances.append(self)

    def __init_subclass__(cls) -> None:
        cls.instances = []

    def reset(self, task: Task, seed: int) -> str:
        return "Go."

    @tool(command="act")
    def act(self) -> Reply:
        """Act."""
        return Reply(text="ok")

    @tool(command="end")
    def end(self) -> Reply:
        """End."""
        return Reply(text="", stop=StopReason.SUCCESS)

    def verify(self) -> Verdict:
        return Verdict(success=True, verifier="counted/1")

    def close(self) -> None:
        self.closed += 1


def closings(environment: type[Counted]) -> list[int]:
    return [instance.closed for instance in environment.instances]


@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [
        (Limits(task_turns=2), StopReason.TASK_BUDGET, 2),
        (Limits(turns=3), StopReason.TURN_LIMIT, 3),
        (Limits(task_turns=2, turns=2), StopReason.TASK_BUDGET, 2),
    ],
)
async def test_a_turn_limit_ends_the_episode_in_its_owners_name(
    make_setting: MakeSetting, attempt: Attempt, says: Says, limits: Limits, reason: StopReason, turns: int
) -> None:
    class World(Counted):
        pass

    found = await attempt(make_setting(World, limits=limits), says("act"))

    assert (found.outcome.reason, len(found.turns)) == (reason, turns)
    assert found.outcome.truncated == (reason is StopReason.TURN_LIMIT)
    assert closings(World) == [1]


async def test_a_turn_cut_by_the_token_limit_is_not_put_before_the_world(
    make_setting: MakeSetting, attempt: Attempt, says: Says
) -> None:
    rejected: list[str] = []

    class Strict(Counted):
        def invalid(self, error: str) -> Reply:
            rejected.append(error)
            return Reply(text="", stop=StopReason.FAILURE, error=error)

    whole = await attempt(make_setting(Strict, limits=Limits(turns=1)), says("act"))
    prompt = whole.turns[0].start

    found = await attempt(make_setting(Strict, limits=Limits(tokens=prompt + 2)), says("act"))

    assert found.outcome.reason is StopReason.TOKEN_LIMIT
    assert len(found.tape_ids(0)) == prompt + 2
    assert [(turn.finish, turn.results) for turn in found.turns] == [(Finish.LENGTH, ())]
    assert rejected == []


async def test_a_result_that_fills_the_context_is_named_as_the_cause(
    make_setting: MakeSetting, attempt: Attempt, says: Says
) -> None:
    class Talkative(Counted):
        @tool(command="act")
        def act(self) -> Reply:
            """Act."""
            return Reply(text="word " * 200)

    found = await attempt(make_setting(Talkative, limits=Limits(tokens=200)), says("act"))

    assert (found.outcome.reason, len(found.turns)) == (StopReason.TOOL_RESULT_OVERFLOW, 1)


async def test_a_prompt_longer_than_the_limit_is_cut_before_the_first_turn(
    make_setting: MakeSetting, attempt: Attempt, says: Says
) -> None:
    found = await attempt(make_setting(Counted, limits=Limits(tokens=3)), says("act"))

    assert (found.outcome.reason, found.turns) == (StopReason.TOKEN_LIMIT, ())


async def test_no_room_in_the_engine_is_the_context_limit(
    make_setting: MakeSetting, attempt: Attempt, spell: Spell
) -> None:
    class Full(ScriptedSampler):
        async def sample(self, request: Request) -> Generation:
            return Generation(
                token_ids=as_ints(spell("act")[:2]),
                sampled=np.ones(2, dtype=np.bool_),
                logprobs=as_floats([-1.0, -1.0]),
                policy_version=0,
                finish=Finish.CONTEXT,
                sampling=request.sampling,
            )

    found = await attempt(make_setting(Counted), Full(lambda _: []))

    assert (found.outcome.reason, len(found.turns)) == (StopReason.CONTEXT_LIMIT, 1)
    assert found.turns[0].results == ()


@pytest.mark.parametrize("where", ["tool", "sampler", "reset"])
async def test_the_time_limit_is_a_cut_wherever_the_time_went(
    make_setting: MakeSetting, attempt: Attempt, says: Says, where: str
) -> None:
    class Slow(Counted):
        def reset(self, task: Task, seed: int) -> str:
            time.sleep(0.4 if where == "reset" else 0.0)
            return "Go."

        @tool(command="act")
        def act(self) -> Reply:
            """Act."""
            time.sleep(0.4 if where == "tool" else 0.0)
            return Reply(text="ok")

    class Thinking(ScriptedSampler):
        async def sample(self, request: Request) -> Generation:
            await asyncio.sleep(10.0 if where == "sampler" else 0.0)
            return await says("act").sample(request)

    began = time.perf_counter()
    found = await attempt(make_setting(Slow, limits=Limits(seconds=0.15, turns=9)), Thinking(lambda _: []))

    assert found.outcome.reason is StopReason.TIME_LIMIT
    assert time.perf_counter() - began < 0.35
    assert (found.verdict is None) == (where != "sampler"), "a state nobody knows is not judged"
    await asyncio.sleep(0.4)
    assert closings(Slow) == [1]


def broken(where: str, how: Callable[[], object]) -> type[Counted]:
    """An environment whose method ``where`` does ``how``."""

    class Broken(Counted):
        def reset(self, task: Task, seed: int) -> str:
            return how() if where == "reset" else "Go."  # type: ignore[return-value]

        @tool(command="act")
        def act(self) -> Reply:
            """Act."""
            return how() if where == "act" else Reply(text="ok")  # type: ignore[return-value]

        def verify(self) -> Verdict:
            return how() if where == "verify" else Verdict(success=True)  # type: ignore[return-value]

    return Broken


def raising() -> object:
    raise RuntimeError("the disk melted")


def unboxed() -> object:
    raise SandboxUnavailable([], frozenset())


def hanging() -> object:
    time.sleep(0.5)
    return None


def nan_reward() -> object:
    return Reply(text="ok", rewards={"x": float("nan")})


def nan_score() -> object:
    return Verdict(success=True, score=float("nan"))


ENV, VERIFIER = StopReason.ENV_ERROR, StopReason.VERIFIER_ERROR
FAILURES: Mapping[str, tuple[str, Callable[[], object], StopReason, str]] = {
    "reset raises": ("reset", raising, ENV, "the disk melted"),
    "reset hangs": ("reset", hanging, ENV, "0.2 s"),
    "reset returns nonsense": ("reset", lambda: 7, ENV, "int"),
    "reset finds no sandbox": ("reset", unboxed, StopReason.SANDBOX_ERROR, "no sandbox proves"),
    "a tool raises": ("act", raising, ENV, "the disk melted"),
    "a tool hangs": ("act", hanging, ENV, "0.2 s"),
    "a tool returns nonsense": ("act", lambda: 7, ENV, "int"),
    "a tool pays nan": ("act", nan_reward, ENV, "nan"),
    "verify raises": ("verify", raising, VERIFIER, "the disk melted"),
    "verify hangs": ("verify", hanging, VERIFIER, "0.2 s"),
    "verify returns nonsense": ("verify", lambda: 1.0, VERIFIER, "float"),
    "verify scores nan": ("verify", nan_score, VERIFIER, "nan"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_broken_environment_is_a_typed_outcome_without_a_reward(
    make_setting: MakeSetting, attempt: Attempt, says: Says, name: str
) -> None:
    where, how, reason, told = FAILURES[name]
    environment = broken(where, how)

    found = await attempt(make_setting(environment, limits=Limits(tool_seconds=0.2)), says("act", "end"))

    assert (found.outcome.reason, found.outcome.infra_error) == (reason, True)
    assert told in found.outcome.detail
    assert (found.verdict, found.reward) == (None, None)
    await asyncio.sleep(0.5 if "hangs" in name else 0.0)
    assert closings(environment) == [1]


@pytest.mark.parametrize("name", ["reset raises", "a tool raises", "verify raises"])
async def test_a_failure_leaves_the_statistics_of_its_group_untouched(
    make_setting: MakeSetting, attempt: Attempt, says: Says, name: str
) -> None:
    where, how, _, _ = FAILURES[name]

    class Fair(Counted):
        def __init__(self, success: bool) -> None:
            super().__init__()
            self.success = success

        def verify(self) -> Verdict:
            return Verdict(success=self.success)

    sound = [
        await attempt(make_setting(lambda success=success: Fair(success)), says("end"), member=member)
        for member, success in ((0, True), (1, False), (3, False))
    ]
    bad = await attempt(make_setting(broken(where, how)), says("act", "end"), member=2)

    def rows(members: list[Trajectory]) -> dict[str, list[float]]:
        group = Group(task=TaskRef(id="t", family="f"), members=tuple(members))
        found = assemble([group], algorithm=build_algorithm("grpo"), rules=RewardRules(), version=0, max_age=0)
        assert found.buckets.get(bad.id, Bucket.INFRA_ERROR) is Bucket.INFRA_ERROR
        return {row.trajectory: [*row.advantages.tolist(), *row.weights.tolist()] for row in found.rows}

    assert rows([sound[0], sound[1], bad, sound[2]]) == rows(sound)
    assert len(rows(sound)) == 3


async def test_ten_megabytes_are_cut_with_a_mark_and_foreign_bytes_are_spelled(
    make_setting: MakeSetting, attempt: Attempt, says: Says, renderer: ChatRenderer
) -> None:
    texts: list[object] = [b"caf\xe9", "x" * 10_000_000]

    class Odd(Counted):
        @tool(command="act")
        def act(self) -> Reply:
            """Act."""
            return texts.pop(0)  # type: ignore[return-value]

    found = await attempt(make_setting(Odd), says("act", "act", "end"))

    first, second = (turn.results[0] for turn in found.turns[:2])
    assert first.text == "caf\\xe9"
    assert len(second.text.encode()) <= 16 * 1024
    assert second.text.endswith(f"[cut: {second.cut_bytes} bytes]")
    assert second.cut_bytes > 9_900_000
    assert "[cut: " in renderer.tokenizer.decode(found.tape_ids(0).tolist())
    assert found.reward == 1.0


async def test_a_tool_that_never_returns_delays_nobody_else(
    make_setting: MakeSetting, attempt: Attempt, says: Says
) -> None:
    never = threading.Event()

    class Stuck(Counted):
        @tool(command="act")
        def act(self) -> Reply:
            """Act."""
            never.wait(20)
            return Reply(text="ok")

    finished: list[float] = []
    began = time.perf_counter()

    async def one(setting: Setting, member: int) -> Trajectory:
        found = await attempt(setting, says("act", "end"), member=member)
        finished.append(time.perf_counter() - began)
        return found

    stuck = asyncio.create_task(one(make_setting(Stuck, limits=Limits(tool_seconds=1.0)), 0))
    found = await asyncio.gather(*(one(make_setting(Counted), member) for member in range(1, 16)))
    assert len(finished) == 15
    assert max(finished) < 0.8
    assert {item.outcome.reason for item in found} == {StopReason.SUCCESS}
    assert (await stuck).outcome.reason is StopReason.ENV_ERROR
    never.set()


async def test_cancellation_leaves_no_record_and_closes_the_world(make_setting: MakeSetting, attempt: Attempt) -> None:
    class World(Counted):
        pass

    waiting, released = asyncio.Event(), []

    class Endless(ScriptedSampler):
        async def sample(self, request: Request) -> Generation:
            waiting.set()
            await asyncio.sleep(60)
            raise AssertionError

        def release(self, context: str) -> None:
            released.append(context)

    task = asyncio.ensure_future(attempt(make_setting(World), Endless(lambda _: [])))
    await waiting.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert closings(World) == [1]
    assert released == ["train/s7/t00000/g0000/m000/a0/tape0"]


async def test_an_engine_that_fails_is_an_engine_error(make_setting: MakeSetting, attempt: Attempt) -> None:
    class Nan(ScriptedSampler):
        async def sample(self, request: Request) -> Generation:
            found = await super().sample(request)
            return Generation(
                token_ids=found.token_ids,
                sampled=found.sampled,
                logprobs=as_floats([float("nan")] * len(found.token_ids)),
                policy_version=0,
                finish=Finish.STOP,
                sampling=request.sampling,
            )

    class Dead(ScriptedSampler):
        async def sample(self, request: Request) -> Generation:
            raise MemoryError("no room")

    for sampler, told in ((Nan(lambda _: [5, 2]), "finite"), (Dead(lambda _: []), "no room")):
        found = await attempt(make_setting(Counted), sampler)
        assert (found.outcome.reason, found.reward) == (StopReason.ENGINE_ERROR, None)
        assert told in found.outcome.detail


async def test_an_agent_that_raises_is_an_agent_error(make_setting: MakeSetting, attempt: Attempt, says: Says) -> None:
    class Clumsy:
        id = "clumsy/1"
        memory = None

        async def run(self, task: Task, world: World, policy: PolicyHandle) -> None:
            await policy.write()
            raise KeyError("plan")

    found = await attempt(make_setting(Counted, agent=Clumsy()), says("act"))

    assert (found.outcome.reason, found.reward) == (StopReason.AGENT_ERROR, None)
    assert "clumsy/1" in found.outcome.detail
    assert found.sampled_tokens == 4


async def test_an_observation_without_a_symbol_is_the_environments_failure(
    make_setting: MakeSetting, attempt: Attempt
) -> None:
    class Foreign(Corridor):
        def reset(self, task: Task, seed: int) -> str:
            return "cell9"

    renderer = SymbolRenderer(actions=("left", "right"), vocabulary=Corridor.vocabulary)

    found = await attempt(make_setting(Foreign, renderer=renderer), ScriptedSampler(lambda _: [0]))

    assert found.outcome.reason is StopReason.ENV_ERROR
    assert "cell9" in found.outcome.detail


async def test_only_cut_episodes_are_valued_at_their_end_and_only_with_a_critic(
    make_setting: MakeSetting, attempt: Attempt
) -> None:
    asked: list[ScoreRequest] = []

    class Critic(ScriptedSampler):
        async def score(self, requests: "list[ScoreRequest]") -> list[Scores]:  # type: ignore[override]
            asked.extend(requests)
            return [Scores(logprobs=as_floats([-1.0]), entropy=as_floats([0.0]), value=as_floats([0.375]))]

    renderer = SymbolRenderer(actions=("left", "right"), vocabulary=Corridor.vocabulary)
    wander = Critic(lambda request: [request.turn % 2])
    run = Critic(lambda _: [1])

    cut = await attempt(make_setting(Corridor, renderer=renderer, limits=Limits(turns=4), records_value=True), wander)
    ended = await attempt(make_setting(Corridor, renderer=renderer, limits=Limits(turns=4), records_value=True), run)
    plain = await attempt(make_setting(Corridor, renderer=renderer, limits=Limits(turns=4)), wander)

    assert [(item.outcome.truncated, item.final_value) for item in (cut, ended, plain)] == [
        (True, 0.375),
        (False, None),
        (True, None),
    ]
    request = asked[0]
    assert len(asked) == 1
    assert request.token_ids.tolist()[:-1] == cut.tape_ids(0).tolist() == [4, 0, 3, 1, 4, 0, 3, 1, 4]
    assert request.positions.tolist() == [9]


async def test_a_full_context_is_still_valued(make_setting: MakeSetting, attempt: Attempt) -> None:
    engine = build_engine("recurrent", EngineSpec(vocabulary=7, max_context=5, options={"hidden": 16}))
    renderer = SymbolRenderer(actions=("left", "right"), vocabulary=Corridor.vocabulary)
    setting = make_setting(Corridor, renderer=renderer, max_new_tokens=1, constrained=True, records_value=True)

    found = [await attempt(setting, engine.sampler, member=member) for member in range(8)]

    full = [item for item in found if item.outcome.reason is StopReason.CONTEXT_LIMIT]
    assert full, [item.outcome for item in found]
    assert all(item.final_value is not None for item in full)
    assert all(item.turns[0].estimate("value") is not None for item in found)
    turns = [turn for item in found for turn in item.turns]
    assert all(turn.stop == turn.start + 1 for turn in turns), "a turn without a token is no turn"
    assert all(turn.estimate(name) is not None for turn in turns for name in ("value", "entropy"))


async def test_a_script_that_ends_before_the_task_is_a_natural_end(make_setting: MakeSetting, attempt: Attempt) -> None:
    found = await attempt(make_setting(Counted), Script(calls=()))

    assert (found.outcome.reason, found.turns) == (StopReason.NATURAL_END, ())
    assert all(span.origin is not Origin.POLICY for span in found.tape_spans(0))
    assert read_episode(found, RewardRules()) == "no_turn"


async def test_a_world_that_cannot_be_closed_is_an_environment_error_without_a_reward(
    make_setting: MakeSetting, attempt: Attempt, says: Says
) -> None:
    class Stuck(Counted):
        def close(self) -> None:
            super().close()
            raise OSError("device busy")

    found = await attempt(make_setting(Stuck), says("end"))

    assert (found.outcome.reason, found.verdict, found.reward) == (StopReason.ENV_ERROR, None, None)
    assert "device busy" in found.outcome.detail
    assert closings(Stuck) == [1]


@pytest.mark.parametrize("wrong", [3, "\ud800"])
async def test_a_state_key_no_record_can_hold_is_an_environment_error(
    make_setting: MakeSetting, attempt: Attempt, says: Says, wrong: object
) -> None:
    class Odd(Counted):
        def state_key(self) -> str:
            return wrong  # type: ignore[return-value]

    found = await attempt(make_setting(Odd), says("act"))

    assert found.outcome.reason is StopReason.ENV_ERROR
    assert "state_key()" in found.outcome.detail
