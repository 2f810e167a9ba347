"""A model server that costs next to nothing: one answer, made beforehand, for chats (streamed or not) and completions.

python benchmarks/gateway_upstream.py PORT
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

from kifu.models import tiny_llama
from kifu.testing.capture_model import END, FakeModel
from kifu.testing.capture_wire import Asking, Reply, listening

TEXT = "the box holds a blue key; go north"


def replies() -> dict[str, bytes]:
    """Bodies by kind."""
    with TemporaryDirectory() as place:
        ids = [*FakeModel(tiny_llama(Path(place) / "tiny")).spell(TEXT), END]
    values = [-0.5] * len(ids)
    head = {"id": "x-1", "created": 1, "model": "m"}
    choice = {"index": 0, "text": TEXT, "finish_reason": "stop", "token_ids": ids}
    completion = {**head, "object": "text_completion", "choices": [{**choice, "logprobs": {"token_logprobs": values}}]}
    message = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": len(ids), "total_tokens": 10 + len(ids)}
    chat = {**head, "object": "chat.completion", "choices": [message], "usage": usage}
    deltas = [{"role": "assistant", "content": ""}, *({"content": word + " "} for word in TEXT.split()), {}]
    chunks = [
        {
            **head,
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}],
        }
        for delta in deltas
    ]
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    bodies = {"completion": json.dumps(completion), "chat": json.dumps(chat), "stream": stream}
    return {name: body.encode() for name, body in bodies.items()}


async def serve(port: int) -> None:
    """Until the process is ended."""
    made = replies()

    async def pieces() -> AsyncIterator[bytes]:
        yield made["stream"]

    async def handle(asking: Asking) -> Reply:
        if asking.path.endswith("/completions") and "chat" not in asking.path:
            return Reply(body=made["completion"])
        if b'"stream": true' in asking.body or b'"stream":true' in asking.body:
            return Reply(kind="text/event-stream", pieces=pieces())
        return Reply(body=made["chat"])

    async with listening(handle, port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
