"""A branch has its parent's tokens, state and turns up to its point, and its own from there on."""

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeAlias

import pytest

from kifu.envs import Capabilities, Environment, Reply, SnapshotKind, Task, tool
from kifu.envs.spec import Snapshot
from kifu.errors import ExperimentError
from kifu.policy import Request, ScriptedSampler
from kifu.records import BlobStore, RolloutKey, StopReason, Trajectory, Verdict, content_digest
from kifu.records.checks import rebuild_check
from kifu.records.rows import from_row, to_row
from kifu.rollout import Branchable, Departure, Limits, Setting, check_branchable, run_rollout

MakeSetting: TypeAlias = Callable[..., Setting]
Spell: TypeAlias = Callable[[str], list[int]]


class Dice(Environment):
    """Every `roll` shows a number drawn from the world's own random state; `stop` ends it."""

    id = "dice"
    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.STATE)
    steps: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.random = random.Random()
        self.shown: list[int] = []

    def __init_subclass__(cls) -> None:
        cls.steps = []

    def reset(self, task: Task, seed: int) -> str:
        """Empty hands."""
        self.random, self.shown = random.Random(seed), []
        return "Roll."

    @tool(command="roll")
    def roll(self) -> Reply:
        """Roll."""
        self.steps.append("roll")
        self.shown.append(self.random.randrange(1000))
        return Reply(text=str(self.shown[-1]))

    @tool(command="stop")
    def stop(self) -> Reply:
        """Stop."""
        self.steps.append("stop")
        return Reply(text="over", stop=StopReason.SUCCESS)

    def verify(self) -> Verdict:
        """The parity of what was shown last."""
        return Verdict(success=bool(self.shown and self.shown[-1] % 2), verifier="dice/1")

    def snapshot(self) -> Snapshot:
        """Numbers shown, and the random state."""
        version, internal, gauss = self.random.getstate()
        return {"shown": list(self.shown), "random": [version, list(internal), gauss]}

    def restore(self, ref: Snapshot) -> None:
        """The same again."""
        assert isinstance(ref, dict)
        shown, state = ref["shown"], ref["random"]
        assert isinstance(shown, list)
        assert isinstance(state, list)
        self.shown = [int(str(item)) for item in shown]
        self.random.setstate((state[0], tuple(state[1]), state[2]))  # type: ignore[arg-type]


class Bytes(Dice):
    """As bytes."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.BYTES)

    def snapshot(self) -> bytes:
        """JSON, but nobody knows."""
        return json.dumps(super().snapshot()).encode()

    def restore(self, ref: Snapshot) -> None:
        """The same again."""
        assert isinstance(ref, bytes)
        super().restore(json.loads(ref))


class Replayable(Dice):
    """Can only be led to where it was."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.REPLAY)

    def snapshot(self) -> Snapshot:
        """None."""
        raise NotImplementedError

    def state_digest(self) -> str:
        """What was shown tells the state."""
        return f"shown {self.shown}"


@pytest.fixture
def setting(make_setting: MakeSetting, tmp_path: Path) -> Callable[..., Setting]:
    """A setting whose rollouts others may leave from."""

    def make(world: type[Environment], **changed: object) -> Setting:
        branchable = Branchable(states=BlobStore(tmp_path / "blobs"), snapshot=world.capabilities.snapshot)
        return make_setting(world, branchable=branchable, **changed)

    return make


@pytest.fixture
def run(spell: Spell) -> Callable[..., Awaitable[Trajectory]]:
    """Runs one member. Members 0 and 2 roll three times and stop, member 1 stops in its third turn."""

    def script(request: Request) -> Sequence[int]:
        last = 2 if "/m001/" in request.sampling.stream else 3
        return spell("stop" if request.turn == last else "roll")

    async def made(setting: Setting, member: int, departure: Departure | None = None) -> Trajectory:
        key = RolloutKey(seed=7, step=0, group=0, member=member)
        task = Task(id="t", seed=3)
        return await run_rollout(setting, writer=ScriptedSampler(script), key=key, task=task, departure=departure)

    return made


def at(parent: Trajectory, turn: int) -> Departure:
    return Departure(parent=parent, turn=turn, chosen_by="the test")


@pytest.mark.parametrize("base", [Dice, Bytes, Replayable])
@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_a_branch_shares_everything_before_its_point(
    setting: Callable[..., Setting], run: Callable[..., Awaitable[Trajectory]], base: type[Dice], turn: int
) -> None:
    class World(base):  # type: ignore[misc, valid-type]
        pass

    common = setting(World)
    parent = await run(common, 0)
    World.steps.clear()

    child = await run(common, 1, at(parent, turn))

    assert parent.outcome.reason is child.outcome.reason is StopReason.SUCCESS
    assert (len(parent.turns), len(child.turns)) == (4, 3)
    start = parent.turns[turn].start
    assert child.turns[:turn] == parent.turns[:turn]
    assert child.turns[turn].start == start == child.shared_tokens
    assert child.tape_ids(0)[:start].tolist() == parent.tape_ids(0)[:start].tolist()
    assert [result.text for item in child.turns for result in item.results][:2] == [
        result.text for item in parent.turns for result in item.results
    ][:2], "the world's random state goes on as it would have"
    assert child.branch is not None
    assert (child.branch.parent, child.branch.tree, child.branch.turn) == (parent.id, parent.id, turn)
    assert child.branch.chosen_by == "the test"
    kept = parent.turns[turn].kept_state
    assert kept is not None
    assert child.branch.digest == kept[0] == (child.turns[turn].kept_state or ("",))[0]
    replayed = base is Replayable
    assert child.branch.restored_by == ("replay" if replayed else "snapshot")
    assert World.steps == ["roll"] * (2 if replayed else 2 - turn) + ["stop"]
    assert rebuild_check(child) == []
    assert from_row(to_row(child)).branch == child.branch


async def test_the_prefix_is_counted_on_the_parent_and_sampled_under_its_stream(
    setting: Callable[..., Setting], run: Callable[..., Awaitable[Trajectory]]
) -> None:
    common = setting(Dice)
    parent = await run(common, 0)
    child = await run(common, 1, at(parent, 2))

    word = len(parent.tape_ids(0)[parent.turns[0].start : parent.turns[0].stop])
    assert parent.sampled_tokens == 4 * word
    assert child.sampled_tokens == word
    streams = [span.sampling.stream for span in child.tapes[0].spans if span.sampling is not None]
    assert streams == ["train/s7/t00000/g0000/m000/a0/t"] * 2 + ["train/s7/t00000/g0000/m001/a0/t"]
    assert all(
        span is other for span, other in zip(child.tapes[0].spans, parent.tapes[0].spans, strict=False) if span.turn < 2
    )


async def test_a_branch_of_a_branch_belongs_to_the_tree_of_its_root(
    setting: Callable[..., Setting], run: Callable[..., Awaitable[Trajectory]]
) -> None:
    common = setting(Dice)
    root = await run(common, 0)
    child = await run(common, 1, at(root, 1))
    grandchild = await run(common, 2, at(child, 2))

    assert grandchild.branch is not None
    assert (grandchild.branch.parent, grandchild.branch.tree) == (child.id, root.id)
    assert [grandchild.inherits(turn) for turn in range(4)] == [True, True, False, False]
    assert [result.text for result in grandchild.turns[2].results] == [result.text for result in root.turns[2].results]


async def test_the_same_branch_made_again_is_the_same_record(
    setting: Callable[..., Setting], run: Callable[..., Awaitable[Trajectory]]
) -> None:
    common = setting(Dice)
    parent = await run(common, 0)
    stored = from_row(to_row(parent))

    first = await run(common, 1, at(parent, 2))
    again = await run(common, 1, at(stored, 2))

    assert content_digest(first) == content_digest(again)


async def test_a_state_that_comes_back_incomplete_is_a_failure_of_the_environment(
    setting: Callable[..., Setting], run: Callable[..., Awaitable[Trajectory]]
) -> None:
    class Forgetful(Dice):
        def restore(self, ref: Snapshot) -> None:
            """Without the random state."""
            assert isinstance(ref, dict)
            super().restore({**ref, "random": Dice().snapshot()["random"]})  # type: ignore[index, call-overload]

    common = setting(Forgetful)
    child = await run(common, 1, at(await run(common, 0), 2))

    assert child.outcome.reason is StopReason.ENV_ERROR
    assert "the snapshot is incomplete or altered" in child.outcome.detail
    assert (child.reward, child.branch, child.turns) == (None, None, ())


async def test_a_world_that_answers_differently_when_replayed_is_a_failure_of_the_environment(
    setting: Callable[..., Setting], run: Callable[..., Awaitable[Trajectory]]
) -> None:
    class Fickle(Replayable):
        resets = 0

        def reset(self, task: Task, seed: int) -> str:
            """Another seed each time."""
            type(self).resets += 1
            return super().reset(task, seed + self.resets)

    common = setting(Fickle)
    child = await run(common, 1, at(await run(common, 0), 2))

    assert child.outcome.reason is StopReason.ENV_ERROR
    assert "turn 0 is answered differently when it is replayed" in child.outcome.detail


async def test_a_limit_holds_for_shared_turns_too(
    setting: Callable[..., Setting], run: Callable[..., Awaitable[Trajectory]]
) -> None:
    parent = await run(setting(Dice), 0)
    child = await run(setting(Dice, limits=Limits(turns=3)), 2, at(parent, 2))

    assert (child.outcome.reason, len(child.turns)) == (StopReason.TURN_LIMIT, 3)


def test_what_can_branch_is_told_from_what_the_environment_declares() -> None:
    assert check_branchable(Dice) is SnapshotKind.STATE
    assert check_branchable(Replayable) is SnapshotKind.REPLAY


class Unkept(Dice):
    """Declares nothing."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.NONE)


class Random(Replayable):
    """Never twice the same."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.REPLAY, deterministic=False)


class Undigested(Dice):
    """Replayed, but nobody could tell whether it worked."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.REPLAY)


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (Unkept, "it declares no snapshot. Define `snapshot` and `restore`"),
        (Random, "it is not deterministic"),
        (Undigested, "defines no `state_digest`"),
    ],
)
def test_what_can_neither_be_restored_nor_replayed_is_refused(world: type[Environment], why: str) -> None:
    with pytest.raises(ExperimentError, match="environment `dice`: rollouts cannot branch in it") as refused:
        check_branchable(world)
    assert why in str(refused.value)
