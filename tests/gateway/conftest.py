"""A gateway over a scripted sampler and the tiny tokenizer, and the tokens of a tape as (origin, text)."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import httpx2
import pytest

from kifu.gateway import Asked, Captured, Gateway, Opened, Rollout, Said, SaidCall, Serving
from kifu.gateway.serve import serving
from kifu.models import ModelFolder
from kifu.policy import Request, ScriptedSampler
from kifu.records import BlobStore, Origin, RolloutKey, RunStore, TaskRef, Trajectory
from kifu.render import DIALECTS, ChatRenderer, ToolView, load_renderer

Spell: TypeAlias = Callable[[str], list[int]]
Turns: TypeAlias = Callable[..., ScriptedSampler]
Serve: TypeAlias = Callable[..., Gateway]
Masked: TypeAlias = Callable[[Trajectory, int], list[tuple[Origin, str]]]

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
ADD = ToolView(
    name="add",
    description="Adds.",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
)


@pytest.fixture(scope="session")
def renderer(tiny_model: ModelFolder) -> ChatRenderer:
    """ChatML and hermes calls on the tiny tokenizer: <|im_start|> is 1, <|im_end|> 2."""
    return load_renderer(tiny_model.path, dialect=DIALECTS["hermes"])


@pytest.fixture(scope="session")
def spell(renderer: ChatRenderer) -> Spell:
    """The least canonical tokenization: one token per character, so that re-tokenizing would be seen."""
    return lambda text: [int(token) for char in text for token in renderer.tokenizer.encode(char)]


@pytest.fixture
def turns(spell: Spell) -> Turns:
    """A sampler that writes the given texts, one a call in order of the calls, the last one for ever."""

    def make(*texts: str, end: bool = True) -> ScriptedSampler:
        left = list(texts)

        def script(request: Request) -> Sequence[int]:
            text = left.pop(0) if len(left) > 1 else left[0]
            return [*spell(text), *([2] if end else [])]

        return ScriptedSampler(script)

    return make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """The records of a run."""
    with RunStore(tmp_path / "run") as opened:
        yield opened


@pytest.fixture
def serve(renderer: ChatRenderer, store: RunStore, tmp_path: Path) -> Serve:
    """A gateway over a sampler."""

    def make(sampler: ScriptedSampler, **serving: object) -> Gateway:
        return Gateway(
            sampler=sampler,
            renderer=renderer,
            store=store,
            serving=Serving(**serving),  # type: ignore[arg-type]
            blobs=BlobStore(tmp_path / "run" / "blobs"),
            admin_key="sk-admin",
        )

    return make


@pytest.fixture
def begin() -> Callable[[Gateway], "object"]:
    """Opens the one rollout of a test."""

    async def opened(gateway: Gateway) -> Rollout:
        await gateway.open(KEY, TaskRef(id="t"))
        return gateway.rollout(KEY.id)

    return opened


def system(text: str) -> Said:
    return Said(role="system", content=text)


def user(text: str) -> Said:
    return Said(role="user", content=text)


def tool(text: str, answers: str = "") -> Said:
    return Said(role="tool", content=text, answers=answers)


def assistant(text: str, *calls: tuple[str, str, str]) -> Said:
    made = tuple(SaidCall(id=one, name=name, arguments=arguments) for one, name, arguments in calls)
    return Said(role="assistant", content=text, calls=made)


@pytest.fixture
def ask() -> Callable[..., "object"]:
    """Makes one call of a conversation and waits for it."""

    async def made(rollout: Rollout, *messages: Said, body: str = "", retry: int = 0, **asked: object) -> Captured:
        call = Asked(api="chat", model="kifu", messages=messages, **asked)  # type: ignore[arg-type]
        return await rollout.begin(call, body=body or repr(messages), retry=retry).task

    return made


@pytest.fixture
def masked(renderer: ChatRenderer) -> Masked:
    """A tape's own tokens as runs of (origin, decoded text)."""

    def runs(trajectory: Trajectory, tape: int) -> list[tuple[Origin, str]]:
        tokens = [(span.origin, int(token)) for span in trajectory.tapes[tape].spans for token in span.token_ids]
        return [
            (origin, renderer.tokenizer.decode([token for _, token in group]))
            for origin, group in groupby(tokens, key=lambda item: item[0])
        ]

    return runs


@pytest.fixture
def said() -> dict[str, Callable[..., Said]]:
    """Makers of messages by role."""
    return {"system": system, "user": user, "tool": tool, "assistant": assistant}


@pytest.fixture
def add_tool() -> ToolView:
    """A tool with one required integer."""
    return ADD


@pytest.fixture
def live() -> Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]:
    """A gateway listening, its one rollout, and a client with that rollout's key."""

    @asynccontextmanager
    async def run(gateway: Gateway, key: RolloutKey = KEY) -> AsyncIterator[tuple[Opened, httpx2.AsyncClient]]:
        opened = await gateway.open(key, TaskRef(id="t"))
        headers = {"authorization": f"Bearer {opened.model_key}"}
        async with (
            serving(gateway) as url,
            httpx2.AsyncClient(base_url=url, headers=headers, timeout=20.0) as client,
        ):
            yield opened, client

    return run
