"""A fake model server whose every answer is known: what a gateway recorded is compared with what was sampled here.

It speaks as vLLM does with ``return_token_ids``: ``/v1/completions`` (text or ids) and ``/v1/chat/completions`` with a
ChatML template of its own, both with ids and logprobs; ``/v1/responses`` and ``/v1/messages`` without them. A turn is
spelled with one token per character, so that it never is what a tokenizer would make of its text.
"""

import asyncio
import json
import re
import zlib
from array import array
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from kifu.errors import UsageError
from kifu.models import ModelFolder
from kifu.testing.capture_wire import Asking, Reply, listening

START, END = 1, 2
MAX_CONTEXT = 2048
MAX_BODY = 1024 * 1024
MODEL = "capture-model"
_MARK = re.compile(r"case-[0-9a-z]+")
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the model says when it is asked."""

    text: str = ""
    ids: tuple[int, ...] = ()
    """Instead of a text."""
    is_random: bool = False
    """A text drawn from the prompt and the seed; without a seed each draw differs."""
    status: int = 200
    delay_s: float = 0.0
    lacks: str = ""
    """``token_ids`` or ``logprobs`` are left out, or ``short`` logprobs lack their last entry."""
    is_garbage: bool = False
    """An answer that is no JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One turn that was sampled and told completely."""

    mark: str
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    body: Mapping[str, Any]
    """The request it answers."""


def logprob_of(context: int, token: int) -> float:
    """The model's logprob of a token, in nats, given the checksum of the ids before it."""
    return -0.01 - (zlib.crc32(array("i", [token]).tobytes(), context) % 997) / 250


def checksum(ids: Sequence[int]) -> int:
    """Of a context."""
    return zlib.crc32(array("i", ids).tobytes())


def logprobs_of(prompt: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
    """Logprobs of a turn under its prompt."""
    found, state = [], checksum(prompt)
    for token in ids:
        found.append(logprob_of(state, token))
        state = zlib.crc32(array("i", [token]).tobytes(), state)
    return tuple(found)


class FakeModel:
    """The server. Which line it says follows from the last mark ``case-NAME`` in the prompt.

    Args:
        folder: of a model whose tokenizer is used; ids 1 and 2 begin and end a message.
    """

    def __init__(self, folder: ModelFolder) -> None:
        self.folder = folder
        self.version = 0
        """Of the weights; told with every answer as ``policy_version``."""
        self.written: list[Written] = []
        self.asked: list[Mapping[str, Any]] = []
        """Every body of a request for a turn, answered or not."""
        self._tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
        self._lines: dict[str, deque[Line]] = {}
        self._draws = 0
        if self._tokenizer.token_to_id("<|im_start|>") != START or self._tokenizer.token_to_id("<|im_end|>") != END:
            raise UsageError(f"{folder.path}: not a ChatML tokenizer with ids {START} and {END}")

    def say(self, mark: str, *lines: Line | str) -> None:
        """Set what is said under a mark, one line a turn, the last one for ever."""
        self._lines[mark] = deque(line if isinstance(line, Line) else Line(text=line) for line in lines)

    def of(self, mark: str) -> list[Written]:
        """What was written under a mark."""
        return [item for item in self.written if item.mark == mark]

    def spell(self, text: str) -> tuple[int, ...]:
        """One token per character."""
        return tuple(token for char in text for token in self._encode(char))

    def byte(self, value: int) -> int:
        """The token of one byte, which alone may be no UTF-8."""
        table = [*range(33, 127), *range(161, 173), *range(174, 256)]
        char = chr(value) if value in table else chr(256 + sum(other not in table for other in range(value)))
        found = self._tokenizer.token_to_id(char)
        if found is None:
            raise UsageError(f"{self.folder.path}: the tokenizer has no token for byte {value}")
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens spelled out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def serving(self, *, port: int = 0) -> AbstractAsyncContextManager[str]:
        """Listen while a block runs; gives the address."""
        return listening(self.handle, port=port)

    async def handle(self, asking: Asking) -> Reply:
        """Answer one request."""
        path = asking.path.split("?")[0]
        if asking.method == "GET":
            known = {"/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model"}]}, "/health": {}}
            return _json(known[path]) if path in known else _json({"error": {"message": "not found"}}, 404)
        if len(asking.body) > MAX_BODY:
            return _bad(f"This model's maximum context length is {MAX_CONTEXT} tokens")
        try:
            body = json.loads(asking.body)
        except ValueError:
            return _bad("the body is not JSON")
        if not isinstance(body, dict):
            return _bad("the body is not an object")
        forms = {"completions": _completions, "chat/completions": _chat, "responses": _responses, "messages": _messages}
        form = forms.get(path.removeprefix("/v1/"))
        if form is None:
            return _json({"error": {"message": f"{path} not found"}}, 404)
        try:
            prompt = self._prompt(path, body)
        except (KeyError, TypeError, AttributeError) as cause:
            return _bad(f"{type(cause).__name__} {cause}")
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens") or 512
        if not isinstance(limit, int) or limit < 1:
            return _bad(f"max_tokens must be at least 1, got {limit}")
        if len(prompt) >= MAX_CONTEXT:
            return _bad(f"This model's maximum context length is {MAX_CONTEXT} tokens, the prompt has {len(prompt)}")
        return await self._turns(body, prompt, limit=limit, form=form)

    async def _turns(self, body: Mapping[str, Any], prompt: tuple[int, ...], *, limit: int, form: Any) -> Reply:  # noqa: ANN401 - a function of the four
        marks = _MARK.findall(self.decode(prompt))
        mark = marks[-1] if marks else ""
        self.asked.append(body)
        made: list[tuple[Line, Written]] = []
        for _ in range(int(body.get("n") or 1)):
            line = self._next(mark)
            ids = self._cut(self._ids(line, prompt, body.get("seed"))[:limit], body)
            written = Written(
                mark=mark,
                prompt=prompt,
                ids=ids,
                logprobs=logprobs_of(prompt, ids),
                version=self.version,
                body=body,
            )
            made.append((line, written))
        await asyncio.sleep(max(line.delay_s for line, _ in made))
        first = made[0][0]
        if first.status != 200:
            return _json({"error": {"message": "the fake model fails on purpose"}}, first.status)
        if first.is_garbage:
            return Reply(body=b'{"choices": [{"mess')
        if not any(line.lacks for line, _ in made):
            self.written += [written for _, written in made]
        reply: Reply = form(self, body, made)
        return reply

    def _next(self, mark: str) -> Line:
        lines = self._lines.get(mark)
        if not lines:
            return Line(text="ok")
        return lines.popleft() if len(lines) > 1 else lines[0]

    def _ids(self, line: Line, prompt: Sequence[int], seed: object) -> tuple[int, ...]:
        if line.ids:
            return (*line.ids, END)
        if line.is_random:
            self._draws += 1
            drawn = zlib.crc32(repr((seed if seed is not None else f"draw {self._draws}", checksum(prompt))).encode())
            return (*self.spell(f"r{drawn}"), END)
        return (*self.spell(line.text), END)

    def _cut(self, ids: tuple[int, ...], body: Mapping[str, Any]) -> tuple[int, ...]:
        """Up to the token that completes a stop string."""
        for count in range(1, len(ids) + 1) if _stops(body) else ():
            if any(stop in self.decode(ids[:count]) for stop in _stops(body)):
                return ids[:count]
        return ids

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _prompt(self, path: str, body: Mapping[str, Any]) -> tuple[int, ...]:
        if path == "/v1/completions":
            asked = body["prompt"]
            return tuple(self._encode(asked)) if isinstance(asked, str) else tuple(int(item) for item in asked)
        messages = list(body["messages"] if "messages" in body else _items(body["input"]))
        if body.get("tools"):
            messages.insert(0, {"role": "system", "content": json.dumps(body["tools"])})
        ids: list[int] = []
        for message in messages:
            head = [START, *self._encode(f"{message['role']}\n")]
            ids += [*head, *self._encode(_shown(message)), END, *self._encode("\n")]
        return (*ids, START, *self._encode("assistant\n"))


def _stops(body: Mapping[str, Any]) -> list[str]:
    found = body.get("stop") or []
    return [found] if isinstance(found, str) else list(found)


def _items(value: str | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": value}] if isinstance(value, str) else list(value)


def _shown(message: Mapping[str, Any]) -> str:
    """A message as the template shows it: thinking left out, calls written again from their JSON."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text") or "" for part in content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = [json.dumps({"name": call["name"], "arguments": json.loads(call["arguments"])}) for call in calls]
    blocks = [f"<tool_call>\n{text}\n</tool_call>" for text in written]
    return "\n".join([*([_THOUGHT.sub("", content)] if content else []), *blocks])


def _json(value: object, status: int = 200) -> Reply:
    return Reply(status=status, body=json.dumps(value).encode())


def _bad(message: str) -> Reply:
    return _json({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400)


def _told(line: Line, written: Written, body: Mapping[str, Any]) -> tuple[list[int] | None, list[float] | None]:
    """Ids and logprobs as far as they are asked for and not left out."""
    ids = list(written.ids) if body.get("return_token_ids") and line.lacks != "token_ids" else None
    wanted = body.get("logprobs") not in (None, False) and line.lacks != "logprobs"
    values = list(written.logprobs[: -1 if line.lacks == "short" else None]) if wanted else None
    return ids, values


def _plain(model: FakeModel, written: Written) -> tuple[str, str]:
    ids = written.ids[:-1] if written.ids and written.ids[-1] == END else written.ids
    text = model.decode(ids)
    stop = next((stop for stop in _stops(written.body) if text.endswith(stop)), "")
    told = text if written.body.get("include_stop_str_in_output") else text.removesuffix(stop)
    return told, "stop" if stop or len(ids) < len(written.ids) else "length"


def _usage(made: Sequence[tuple[Line, Written]]) -> dict[str, int]:
    prompt, answer = len(made[0][1].prompt), sum(len(written.ids) for _, written in made)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _completions(model: FakeModel, body: Mapping[str, Any], made: Sequence[tuple[Line, Written]]) -> Reply:
    choices = []
    for at, (line, written) in enumerate(made):
        ids, values = _told(line, written, body)
        text, reason = _plain(model, written)
        choice: dict[str, Any] = {"index": at, "text": text, "finish_reason": reason, "logprobs": None}
        if values is not None:
            choice["logprobs"] = {"tokens": [model.decode([token]) for token in written.ids], "token_logprobs": values}
        if ids is not None:
            choice |= {"token_ids": ids, "prompt_token_ids": list(written.prompt)}
        choices.append({**choice, "policy_version": written.version})
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}
    return _json({**head, "choices": choices, "usage": _usage(made)})


def _message(model: FakeModel, body: Mapping[str, Any], written: Written) -> tuple[dict[str, Any], str]:
    """A turn with its calls read, as a server with a tool parser tells it."""
    text, reason = _plain(model, written)
    calls = []
    for found in _CALL.finditer(text) if body.get("tools") else ():
        try:
            call = json.loads(found[1])
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        except (ValueError, KeyError, TypeError):
            return {"role": "assistant", "content": text}, reason
        name = f"call_{written.mark}_{len(written.prompt)}_{found.start()}"
        calls.append({"id": name, "type": "function", "function": function})
    if not calls:
        return {"role": "assistant", "content": text}, reason
    return {"role": "assistant", "content": _CALL.sub("", text).strip() or None, "tool_calls": calls}, "tool_calls"


def _chat(model: FakeModel, body: Mapping[str, Any], made: Sequence[tuple[Line, Written]]) -> Reply:
    choices: list[dict[str, Any]] = []
    for at, (line, written) in enumerate(made):
        message, reason = _message(model, body, written)
        ids, values = _told(line, written, body)
        choice: dict[str, Any] = {"index": at, "message": message, "finish_reason": reason, "logprobs": None}
        if values is not None:
            pairs = zip(written.ids, values, strict=False)
            content = [{"token": model.decode([token]), "logprob": value} for token, value in pairs]
            choice["logprobs"] = {"content": content}
        choices.append(choice if ids is None else {**choice, "token_ids": ids})
    head = {"id": "chatcmpl-1", "created": 1, "model": MODEL, "policy_version": made[0][1].version}
    prompt = {"prompt_token_ids": list(made[0][1].prompt)} if body.get("return_token_ids") else {}
    if body.get("stream"):
        return Reply(kind="text/event-stream", pieces=_stream(head, choices, prompt))
    return _json({**head, **prompt, "object": "chat.completion", "choices": choices, "usage": _usage(made)})


async def _stream(
    head: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], prompt: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    """Chunks: a role, the text with ids and logprobs, the calls, the reason, the end."""

    def chunk(at: int, delta: Mapping[str, Any], **more: object) -> bytes:
        choice = {"index": at, "delta": delta, "finish_reason": None, **more}
        first = prompt if not sent else {}
        data = {**head, "object": "chat.completion.chunk", "choices": [choice], **first}
        sent.append(at)
        return f"data: {json.dumps(data)}\n\n".encode()

    sent: list[int] = []
    for choice in choices:
        at, message = choice["index"], choice["message"]
        yield chunk(at, {"role": "assistant", "content": ""})
        ids = {"token_ids": choice["token_ids"]} if "token_ids" in choice else {}
        yield chunk(at, {"content": message["content"] or ""}, logprobs=choice["logprobs"], **ids)
        for number, call in enumerate(message.get("tool_calls", ())):
            yield chunk(at, {"tool_calls": [{"index": number, **call}]})
        await asyncio.sleep(0)
        yield chunk(at, {}, finish_reason=choice["finish_reason"])
    yield b"data: [DONE]\n\n"


def _responses(model: FakeModel, body: Mapping[str, Any], made: Sequence[tuple[Line, Written]]) -> Reply:
    del body
    text, _ = _plain(model, made[0][1])
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return _json({"id": "resp_1", "object": "response", "model": MODEL, "status": "completed", "output": [item]})


def _messages(model: FakeModel, body: Mapping[str, Any], made: Sequence[tuple[Line, Written]]) -> Reply:
    del body
    text, _ = _plain(model, made[0][1])
    usage = _usage(made)
    return _json(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
        }
    )
