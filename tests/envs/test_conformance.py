"""check_env finds each way to break the contract and says which."""

import random
from typing import Any, ClassVar

import pytest

from kifu.envs import Capabilities, Component, Environment, Reply, Snapshot, Task, ToolSpec, tool
from kifu.records import Json, StopReason, ToolCall, Verdict
from kifu.testing import check_env

TASKS = [Task(id="one", seed=1), Task(id="two", seed=2)]


class Lamp(Environment):
    """Three presses light it."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    vocabulary: ClassVar[tuple[str, ...]] = ("dark", "light", "what")

    def __init__(self) -> None:
        self.presses: list[Json] = []

    def reset(self, task: Task, seed: int) -> str:
        self.presses = []
        return "dark"

    @tool
    def press(self) -> Reply:
        """Press the button."""
        self.presses.append(1)
        done = len(self.presses) == 3
        return Reply(text="light" if done else "dark", stop=StopReason.SUCCESS if done else None)

    def invalid(self, error: str) -> Reply:
        return Reply(text="what", error=error)

    def verify(self) -> Verdict:
        return Verdict(success=len(self.presses) == 3)

    def snapshot(self) -> Snapshot:
        return list(self.presses)

    def restore(self, ref: Snapshot) -> None:
        assert isinstance(ref, list)
        self.presses = list(ref)

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        return (ToolCall(name="press"),) * 3


class GlobalRandom(Lamp):
    def reset(self, task: Task, seed: int) -> str:
        self.presses = [random.random()]
        return "dark"

    def verify(self) -> Verdict:
        return Verdict(success=len(self.presses) == 4)

    @tool
    def press(self) -> Reply:
        """Press the button."""
        self.presses.append(1)
        return Reply(text="dark", stop=StopReason.SUCCESS if len(self.presses) == 4 else None)


class Leftover(Lamp):
    def reset(self, task: Task, seed: int) -> str:
        if len(self.presses) > 2:
            self.presses = self.presses[:1]
        return "dark"


class SharedState(Lamp):
    box: ClassVar[list[Json]] = []

    def __init__(self) -> None:
        self.presses = self.box

    def reset(self, task: Task, seed: int) -> str:
        self.presses.clear()
        return "dark"


class AliasedSnapshot(Lamp):
    def snapshot(self) -> Snapshot:
        return self.presses


class ForgetfulSnapshot(Lamp):
    def restore(self, ref: Snapshot) -> None:
        assert isinstance(ref, list)
        self.presses = [*ref]
        self.extra = True

    @tool
    def press(self) -> Reply:
        """Press the button."""
        reply = super().press()
        return Reply(text="light", stop=reply.stop) if getattr(self, "extra", False) else reply


class NotJson(Lamp):
    def snapshot(self) -> Snapshot:
        return {"when": {1, 2}}  # type: ignore[dict-item]


class WrongGold(Lamp):
    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        return (ToolCall(name="press"),)


class PaysSilence(Lamp):
    def verify(self) -> Verdict:
        return Verdict(success=True)


class PaysEffort(Lamp):
    def verify(self) -> Verdict:
        return Verdict(success=len(self.presses) == 3, score=len(self.presses) / 2)


class PaysTwice(Lamp):
    components: ClassVar[dict[str, Component]] = {
        "pressed": Component(
            scores="the first press",
            labeller="the world",
            is_checkable=True,
            needs_continuation=False,
            is_repeatable=False,
            changes_optimum=False,
        )
    }

    @tool
    def press(self) -> Reply:
        """Press the button."""
        reply = super().press()
        return Reply(text=reply.text, stop=reply.stop, rewards={"pressed": 1.0} if reply.stop is None else {})


class MovingVerdict(Lamp):
    def verify(self) -> Verdict:
        self.times = getattr(self, "times", 0) + 1
        return Verdict(success=len(self.presses) == 3, invalid_actions=self.times)


class VerifyActs(Lamp):
    def verify(self) -> Verdict:
        self.presses.append(1)
        return Verdict(success=True)


class Crashes(Lamp):
    def step(self, call: ToolCall) -> Any:  # noqa: ANN401
        return getattr(self, call.name)(**call.arguments)


class OutsideVocabulary(Lamp):
    vocabulary: ClassVar[tuple[str, ...]] = ("dark", "what")


class LeakyMask(Lamp):
    def allowed(self) -> tuple[str, ...]:
        return ("press", "fly")


class BadSchema(Lamp):
    def tools(self) -> tuple[ToolSpec, ...]:
        odd: dict[str, Json] = {"type": "object", "properties": {"x": {"type": "any"}}, "required": ["y"]}
        return (
            *super().tools(),
            ToolSpec(name="odd", description="", parameters=odd, command="odd {z}"),
        )


class CloseOnce(Lamp):
    def close(self) -> None:
        del self.presses


def test_a_sound_environment_passes() -> None:
    check_env(Lamp, TASKS)


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (GlobalRandom, "two episodes with the same seed and actions differ"),
        (GlobalRandom, "global random stream"),
        (Leftover, "reset number"),
        (SharedState, "an episode changes another instance"),
        (AliasedSnapshot, "changes a snapshot that was taken before"),
        (ForgetfulSnapshot, "goes on differently after restore"),
        (NotJson, "not JSON serializable"),
        (WrongGold, "the demonstrator earns 0.0, expected 1"),
        (PaysSilence, "says nothing earns 1.0"),
        (PaysEffort, "that stops after 2 of 3 actions of the demonstrator earns 1.0, expected less than 1"),
        (PaysTwice, "component `pressed` is paid 2 times in an episode"),
        (MovingVerdict, "another verdict the second time"),
        (VerifyActs, "changed the state"),
        (Crashes, "AttributeError"),
        (OutsideVocabulary, "hold ['light'], which the vocabulary does not list"),
        (LeakyMask, "allowed() names fly"),
        (BadSchema, "parameter `x`: found schema"),
        (BadSchema, "required `y` is no parameter"),
        (BadSchema, "the command template names `z`, no parameter"),
        (BadSchema, "tool `odd`: no description"),
        (CloseOnce, "a second close raised AttributeError"),
    ],
)
def test_a_broken_environment_is_named_with_what_is_broken(cls: type[Environment], words: str) -> None:
    with pytest.raises(AssertionError) as found:
        check_env(cls, TASKS, resets=20)
    assert words in str(found.value)
    assert str(found.value).startswith(f"{cls.__name__} breaks the contract:\n- ")
