"""The child's end of `kifu.envs.calling.process`: JSON lines on stdin and stdout.

``python -m kifu.envs.calling.worker REFERENCE``
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from kifu.envs.calling.relay import Kept
from kifu.envs.calling.wire import Message, shown_out, snapshot_in, snapshot_out, verdict_out, view_out
from kifu.envs.contract import Environment
from kifu.envs.registry import resolve_environment
from kifu.envs.spec import Task
from kifu.envs.view import look
from kifu.errors import KifuError
from kifu.records import ToolCall


async def _perform(world: Environment, request: Message) -> Message:
    """Execute one request; awaitables are awaited here."""
    encode: Callable[[Any], Message] = shown_out
    found: Any = None
    match request["do"]:
        case "reset":
            found = world.reset(Task(**request["task"]), request["seed"])
        case "step":
            found = world.step(ToolCall(**request["call"]))
        case "invalid":
            found = world.invalid(request["error"])
        case "answered":
            found = world.answered(request["text"])  # type: ignore[func-returns-value]  # it may be a coroutine
        case "verify":
            found, encode = world.verify(), verdict_out
        case "snapshot":
            found, encode = world.snapshot(), snapshot_out
        case "restore":
            found = world.restore(snapshot_in(request["ref"]))  # type: ignore[func-returns-value]
    if isawaitable(found):
        found = await _awaited(found)
    return {"found": encode(found), "view": view_out(look(world))}


async def _close(world: Environment | None) -> Message:
    if world is not None and isawaitable(closing := world.close()):  # type: ignore[func-returns-value]
        await _awaited(closing)
    return {}


async def _awaited(found: Awaitable[Any]) -> Any:  # noqa: ANN401
    return await found


def _news(kept: Kept | None) -> list[Message]:
    return [] if kept is None else kept.news()


async def _serve(reference: str) -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the environment prints goes to stderr and cannot be taken for an answer
    world: Environment | None = None
    kept: Kept | None = None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            if request["do"] == "close":
                answer = await _close(world)
            else:
                world = world or resolve_environment(reference)()
                if request["effects"] and kept is None:
                    kept = Kept()
                    world.effect_log = kept.log
                answer = await _perform(world, request)
            text = json.dumps({**answer, "effects": _news(kept)}, allow_nan=False)
        except Exception as error:
            kind = next((base.__name__ for base in type(error).__mro__ if base.__module__ == KifuError.__module__), "")
            text = json.dumps({"error": kind or type(error).__name__, "text": str(error), "effects": _news(kept)})
        answers.write(text.encode() + b"\n")
        answers.flush()
        if request["do"] == "close":
            break
    if kept is not None:
        kept.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
