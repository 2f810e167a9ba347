"""A renderer of a real tokenizer, settings around a hand-made world, and turns spelled character by character."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest

from kifu.agents import ToolCallingAgent
from kifu.envs import Environment, Task
from kifu.models import ModelFolder
from kifu.policy import Request, Sampler, ScriptedSampler
from kifu.records import RolloutKey, Sampling, Trajectory
from kifu.render import DIALECTS, ChatRenderer, load_renderer
from kifu.rollout import Script, Setting, run_rollout

MakeSetting: TypeAlias = Callable[..., Setting]
Spell: TypeAlias = Callable[[str], list[int]]


@pytest.fixture(scope="session")
def renderer(tiny_model: ModelFolder) -> ChatRenderer:
    """ChatML and the command dialect on the tiny tokenizer: <|im_start|> is 1, <|im_end|> 2, a line break 201."""
    return load_renderer(tiny_model.path, dialect=DIALECTS["command"])


@pytest.fixture
def make_setting(renderer: ChatRenderer) -> MakeSetting:
    """A setting around an environment; keyword arguments replace its fields."""

    def make(environment: Callable[[], Environment], **changed: object) -> Setting:
        fields: dict[str, object] = {
            "environment": environment,
            "renderer": renderer,
            "agent": ToolCallingAgent(),
            "sampling": Sampling(temperature=1.0),
            "max_new_tokens": 48,
        }
        return Setting(**{**fields, **changed})  # type: ignore[arg-type]

    return make


@pytest.fixture
def spell(renderer: ChatRenderer) -> Spell:
    """The least canonical tokenization of a turn: one token per character, then the end of the turn."""

    def spelled(text: str) -> list[int]:
        return [*(int(renderer.tokenizer.encode(char)[0]) for char in text), 2]

    return spelled


@pytest.fixture
def says(spell: Spell) -> Callable[..., ScriptedSampler]:
    """A sampler that writes one text a turn, the last one for ever."""

    def make(*texts: str, end: bool = True) -> ScriptedSampler:
        def script(request: Request) -> Sequence[int]:
            ids = spell(texts[min(request.turn, len(texts) - 1)])
            return ids if end else ids[:-1]

        return ScriptedSampler(script)

    return make


@pytest.fixture
def attempt() -> Callable[..., "object"]:
    """Runs one rollout."""

    async def run(setting: Setting, writer: Sampler | Script, *, task: Task | None = None, **key: int) -> Trajectory:
        place = RolloutKey(**{"seed": 7, "step": 0, "group": 0, "member": 0, **key})  # type: ignore[arg-type]
        return await run_rollout(setting, writer=writer, key=place, task=task or Task(id="t", seed=3, family="f"))

    return run
