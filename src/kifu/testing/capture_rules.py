"""Rules of capture that clients and engines break in daily use: retries, edits, disconnects, hostile bodies."""

import asyncio
import json
from contextlib import suppress
from urllib.parse import urlsplit

from kifu.testing.capture_bench import ADD, Bench, answered, call_of, must, refused, user
from kifu.testing.capture_contract import NotOffered, Session
from kifu.testing.capture_model import END, Line
from kifu.testing.capture_wire import WireError, ask

BODIES = (
    b"{",
    b"[]",
    b'{"model": "\xff"}',
    b'{"messages": NaN}',
    b"[" * 100_000,
    b'{"model": "MODEL", "messages": "no"}',
    b'{"model": "MODEL", "messages": [{"role": 3}]}',
    b'{"model": "MODEL", "messages": [{"role": "user", "content": "hi"}], "max_tokens": -1}',
    b'{"model": "MODEL", "messages": [{"role": "user", "content": "hi"}], "n": "many"}',
    b'{"model": "MODEL", "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]}',
)


async def retries(bench: Bench) -> str:
    """A retry after the commit gets the committed answer; nothing is sampled again."""
    bench.model.say(bench.mark, "first", "second")
    session = await bench.open()
    texts = []
    for retry in ("0", "1"):
        how = {"headers": {"x-stainless-retry-count": retry}}
        texts.append((await bench.said(session, [bench.prompt()], how=how))["content"])
    count = len(bench.model.of(bench.mark))
    must(count == 1, f"a retry was sampled again: {count} turns, {texts}")
    must(texts[0] == texts[1], f"the retry got {texts[1]!r}, the call {texts[0]!r}")
    return bench.all_once(await bench.subject.finish(session))


async def the_end_is_durable(bench: Bench) -> str:
    """A client that saw the end of a stream finds it in the record, though the gateway is killed at once."""
    session = await bench.open()
    bench.model.say(bench.mark, "first", "second")
    for at in range(2):
        answer = await bench.chat(session, [bench.prompt(str(at))], stream=True)
        must(answer.status == 200 and "[DONE]" in answer.text, f"a stream got {answer.shown}")
        await bench.restart()
    return bench.all_once(await bench.subject.finish(session))


async def a_client_leaves(bench: Bench) -> str:
    """A client that leaves in mid-stream leaves a call whose sampled tokens are all accounted for."""
    bench.model.say(bench.mark, Line(text="a long answer " * 8, delay_s=0.3), "next")
    session = await bench.open()
    with suppress(WireError):
        await bench.chat(session, [bench.prompt()], stream=True, how={"leave_after": 1})
    for _ in range(100):
        if bench.model.of(bench.mark):
            break
        await asyncio.sleep(0.05)
    await bench.said(session, [bench.prompt("again")])
    kept = await bench.subject.finish(session)
    sampled = sum(len(item.ids) for item in bench.model.of(bench.mark))
    accounted = kept.trained + kept.withheld
    must(accounted == sampled, f"{sampled} tokens were sampled, the record accounts for {accounted}")
    return f"{kept.trained} trained and {kept.withheld} withheld of {sampled} sampled"


async def late_calls(bench: Bench) -> str:
    """A call after the end of a session is refused and changes nothing."""
    session = await bench.open()
    await bench.said(session, [bench.prompt()])
    kept = await bench.subject.finish(session)
    found = refused(await bench.chat(session, [bench.prompt("late")]), "a call after the end")
    must((await bench.subject.read(session)).rows == kept.rows, "the late call changed the record")
    return found


async def other_sessions(bench: Bench) -> str:
    """The key of one session does not open another one, and nor does no key or a made-up one."""
    mine, other = await bench.open(), await bench.open()
    body = {"model": mine.model, "messages": [bench.prompt()]}
    for what, headers in (
        ("another session's key", {"authorization": f"Bearer {mine.key}"}),
        ("a made-up key", {"authorization": "Bearer sk-made-up"}),
        ("no key", {}),
    ):
        refused(await ask(f"{other.base_url}/chat/completions", body=body, headers=headers), what)
    must((await bench.subject.finish(other)).trained == 0, "a refused call is trained")
    return "refused: another session's key, a made-up one, none"


async def a_stop_string_put_back(bench: Bench) -> str:
    """A client that writes the stop string behind the answer edits the history; its words are not trained."""
    bench.model.say(bench.mark, "thought STOP", "done")
    session = await bench.open()
    said = await bench.said(session, [bench.prompt()], stop=["STOP"])
    history = [bench.prompt(), {"role": "assistant", "content": f"{said['content']}STOP"}, user("go on")]
    await bench.said(session, history, stop=["STOP"])
    return bench.all_once(await bench.subject.finish(session))


async def respelled_arguments(bench: Bench) -> str:
    """Arguments that come back as equal JSON in another spelling do not change what was sampled."""
    bench.model.say(bench.mark, call_of(7), "done")
    session = await bench.open()
    said = await bench.said(session, [bench.prompt()], tools=[ADD])
    calls = said.get("tool_calls") or []
    must(len(calls) == 1, f"a call came as {json.dumps(said)[:200]}")
    calls[0]["function"]["arguments"] = '{ "a":7.0 }'
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "8"}
    await bench.said(session, [bench.prompt(), said, result], tools=[ADD])
    return bench.all_once(await bench.subject.finish(session))


async def invalid_utf8(bench: Bench) -> str:
    """Sampled bytes that are no UTF-8 are told as text and kept as ids."""
    ids = (*bench.model.spell("a"), bench.model.byte(0xC3), bench.model.byte(0xFF), *bench.model.spell("b"))
    bench.model.say(bench.mark, Line(ids=ids), "done")
    session = await bench.open()
    said = await bench.said(session, [bench.prompt()])
    await bench.said(session, [bench.prompt(), said, user("go on")])
    return bench.all_once(await bench.subject.finish(session))


async def broken_calls(bench: Bench) -> str:
    """A tool call that is no JSON, and one that is never closed, are answers all the same."""
    bench.model.say(bench.mark, '<tool_call>\n{"name": "add", "arguments": {"a": }\n</tool_call>', "<tool_call>\n{")
    session = await bench.open()
    said = await bench.said(session, [bench.prompt()], tools=[ADD])
    must(not said.get("tool_calls"), f"a broken call was told as {json.dumps(said)[:200]}")
    await bench.said(session, [bench.prompt(), {**said, "content": said["content"] or ""}, user("again")], tools=[ADD])
    return bench.all_once(await bench.subject.finish(session))


async def reordered_history(bench: Bench) -> str:
    """A history whose turns are dropped and exchanged is another context; nothing in it is trained twice."""
    bench.model.say(bench.mark, "one", "two", "three", "four", "five")
    session = await bench.open()
    history = [bench.prompt()]
    for _ in range(3):
        history += [await bench.said(session, history), user("go on")]
    await bench.said(session, [*history[:1], *history[3:]])
    await bench.said(session, [history[0], history[3], history[2], history[1], user("go on")])
    return bench.all_once(await bench.subject.finish(session))


async def hostile_bodies(bench: Bench) -> str:
    """Bodies that are no call are refused with 4xx; none is trained, and the next call is answered."""
    session = await bench.open()
    for body in BODIES:
        answer = await bench.post(session, "/chat/completions", body.replace(b"MODEL", session.model.encode()))
        refused(answer, f"the body {body[:70].decode(errors='replace')!r}")
    await bench.said(session, [bench.prompt()])
    return bench.all_once(await bench.subject.finish(session))


async def slow_clients(bench: Bench) -> str:
    """Sixteen clients that never finish their request keep nobody waiting."""
    session = await bench.open()
    where = urlsplit(session.base_url)
    head = f"POST {where.path}/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {session.key}\r\n"
    open_writers = []
    try:
        for _ in range(16):
            _, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write((head + "content-type: application/json\r\ncontent-length: 9999\r\n\r\n{").encode())
            open_writers.append(writer)
        await bench.said(session, [bench.prompt()], how={"timeout_s": 3.0})
    finally:
        for writer in open_writers:
            writer.close()
    return bench.all_once(await bench.subject.finish(session))


async def smuggled_headers(bench: Bench) -> str:
    """Two lengths in one request are refused, or at least answer no second request."""
    session = await bench.open()
    where = urlsplit(session.base_url)
    inner = f"GET {where.path}/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {session.key}\r\n\r\n"
    head = f"POST {where.path}/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {session.key}\r\n"
    lengths = f"content-length: {len(inner)}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    answers = await _raw(session, f"{head}{lengths}{inner}".encode())
    must(b" 200 " not in answers.split(b"\r\n")[0], f"two lengths got {answers[:80]!r}")
    return f"{answers[:40]!r}"


async def _raw(session: Session, data: bytes) -> bytes:
    where = urlsplit(session.base_url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(data)
        async with asyncio.timeout(5.0):
            return await reader.read(65_536)
    except (TimeoutError, ConnectionError):
        return b"closed"
    finally:
        writer.close()


async def cut_by_length(bench: Bench) -> str:
    """A turn that was cut at its limit ends without a stop token; the next turn does not train one."""
    bench.model.say(bench.mark, "abcdefgh", "done")
    session = await bench.open()
    found = answered(await bench.chat(session, [bench.prompt()], max_tokens=3))
    must(found["choices"][0]["finish_reason"] == "length", f"a cut turn ended with {found['choices'][0]}")
    await bench.said(session, [bench.prompt(), found["choices"][0]["message"], user("go on")])
    written = bench.model.of(bench.mark)
    if END in written[0].ids:
        raise NotOffered("the limit did not reach the model")
    return bench.all_once(await bench.subject.finish(session))
