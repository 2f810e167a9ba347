"""Twenty pains of people who train agents, each as one or more cases that a gateway can be asked about."""

import asyncio
import json

from kifu.testing.capture_bench import ADD, Bench, all_once, answered, call_of, logprobs_hold, must, refused, user
from kifu.testing.capture_contract import NotOffered
from kifu.testing.capture_model import Line
from kifu.testing.capture_wire import WireError, ask

HUGE = 32 * 1024 * 1024


async def retokenization(bench: Bench) -> str:
    """Ids that no tokenizer would choose, in a conversation of three turns."""
    bench.model.say(bench.mark, "hello there", "the agent", "done")
    session = await bench.open()
    history = [bench.prompt()]
    for _ in range(3):
        history += [await bench.said(session, history), user("go on")]
    return bench.all_once(await bench.subject.finish(session))


async def exact_continuation(bench: Bench) -> str:
    """The second turn is sampled after exactly the ids that were sampled first."""
    bench.model.say(bench.mark, "hello there", "done")
    session = await bench.open()
    said = await bench.said(session, [bench.prompt()])
    await bench.said(session, [bench.prompt(), said, user("go on")])
    first, second = bench.model.of(bench.mark)
    whole = (*first.prompt, *first.ids)
    same = next((at for at, (a, b) in enumerate(zip(whole, second.prompt, strict=False)) if a != b), len(whole))
    must(
        second.prompt[: len(whole)] == whole,
        f"the first {len(whole)} ids of the second prompt should be those of the first turn; they part at {same}",
    )
    return f"the second prompt begins with the {len(whole)} ids of the first turn"


async def stripped_thinking(bench: Bench) -> str:
    """Thinking that neither template nor client shows again stays trained where it was thought."""
    bench.model.say(bench.mark, "<think>because</think>\n\nyes", "<think>so</think>\n\nno")
    session = await bench.open()
    said = await bench.said(session, [bench.prompt()])
    plain = {"role": "assistant", "content": str(said["content"]).split("</think>")[-1].strip()}
    await bench.said(session, [bench.prompt(), plain, user("go on")])
    return bench.all_once(await bench.subject.finish(session))


async def turn_boundaries(bench: Bench) -> str:
    """Results of two parallel calls and the separators around them are in no mask; every stop token is."""
    bench.model.say(bench.mark, f"{call_of(1)}\n{call_of(2)}", "three")
    session = await bench.open()
    said = await bench.said(session, [bench.prompt()], tools=[ADD])
    calls = said.get("tool_calls") or []
    must(len(calls) == 2, f"two parallel calls came as {json.dumps(said)[:200]}")
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"is {at}"} for at, call in enumerate(calls)]
    await bench.said(session, [bench.prompt(), said, *reversed(results)], tools=[ADD])
    return bench.all_once(await bench.subject.finish(session))


async def missing_ids(bench: Bench) -> str:
    """A call whose ids the engine left out is not trained, and the calls around it are."""
    bench.model.say(bench.mark, "one", Line(text="two", lacks="token_ids"), "three")
    session = await bench.open()
    for at in range(3):
        await bench.chat(session, [bench.prompt(str(at))])
    return bench.all_once(await bench.subject.finish(session))


async def streamed_call(bench: Bench) -> str:
    """A streamed turn with a tool call keeps its ids."""
    bench.model.say(bench.mark, call_of(1))
    session = await bench.open()
    answer = await bench.chat(session, [bench.prompt()], tools=[ADD], stream=True)
    must(answer.status == 200 and "[DONE]" in answer.text, f"a streamed call got {answer.shown}")
    return bench.all_once(await bench.subject.finish(session))


async def effective_sampling(bench: Bench) -> str:
    """The record names the distribution that was sampled from, whatever the client asked for."""
    session = await bench.open()
    answer = await bench.chat(session, [bench.prompt()], temperature=0.5, top_p=0.5)
    if 400 <= answer.status < 500:
        return f"refused: {answer.shown}"
    answered(answer)
    body = bench.model.of(bench.mark)[-1].body
    used = {name: body.get(name) for name in ("temperature", "top_p")}
    kept = await bench.subject.finish(session)
    if kept.trained == 0 and kept.withheld:
        return "recorded as not trainable"
    for token in (token for row in kept.rows for token in row if token.trained):
        must(token.sampling is not None, f"sampled with {used}; the record names no sampling")
        assert token.sampling is not None
        for name, value in used.items():
            recorded = token.sampling.get(name)
            must(_or_one(recorded) == _or_one(value), f"sampled with {name} {value}, the record says {recorded}")
    return f"sampled with {used}, recorded so"


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value


async def ratio_one(bench: Bench) -> str:
    """Logprobs in the record are the model's own under the record's own prefixes, so that the ratio is 1."""
    bench.model.say(bench.mark, "hello there", call_of(4), "bye")
    session = await bench.open()
    said = await bench.said(session, [bench.prompt()])
    await bench.said(session, [bench.prompt(), said, user("more")])
    await bench.said(session, [bench.prompt("other")])
    return logprobs_hold(await bench.subject.finish(session))


async def installation(bench: Bench) -> str:
    """Installing."""
    raise NotOffered(f"cannot be seen over HTTP ({bench.subject.name} was installed to be checked)")


async def a_stuck_call(bench: Bench) -> str:
    """A call that is not answered keeps nobody else waiting, and its session can be ended."""
    bench.model.say(bench.mark, Line(text="late", delay_s=3.0))
    bench.model.say(f"{bench.mark}x", "quick")
    stuck, other = await bench.open(), await bench.open()
    waiting = asyncio.create_task(_left(bench, stuck))
    await asyncio.sleep(0.1)
    message = await bench.said(other, [user(f"{bench.mark}x")], how={"timeout_s": 1.5})
    must(message["content"] == "quick", f"the other session got {message}")
    await waiting
    kept = await bench.subject.finish(stuck)
    must(kept.trained == 0, f"{kept.trained} tokens of a call that nobody was answered are trained")
    all_once(await bench.subject.finish(other), bench.model.of(f"{bench.mark}x"))
    return "the other session was answered, the stuck one could be ended"


async def _left(bench: Bench, session: object) -> None:
    try:
        await bench.chat(session, [bench.prompt()], how={"timeout_s": 1.5})  # type: ignore[arg-type]
    except WireError:
        return


async def one_bad_rollout(bench: Bench) -> str:
    """Garbage from the engine in one session harms no other one."""
    bench.model.say(bench.mark, Line(is_garbage=True))
    bench.model.say(f"{bench.mark}x", "fine")
    bad, good = await bench.open(), await bench.open()
    answer = await bench.chat(bad, [bench.prompt()])
    message = await bench.said(good, [user(f"{bench.mark}x")])
    must(message["content"] == "fine", f"the good session got {message}")
    must((await bench.subject.finish(bad)).trained == 0, "garbage is trained")
    all_once(await bench.subject.finish(good), bench.model.of(f"{bench.mark}x"))
    return f"the bad call got {answer.shown}, the good one its answer"


async def no_phantom_reward(bench: Bench) -> str:
    """A session that nobody judged has no reward; it is not 0."""
    session = await bench.open()
    await bench.said(session, [bench.prompt()])
    kept = await bench.subject.finish(session)
    must(kept.reward is None, f"nobody judged the session and its reward is {kept.reward}")
    return "no reward"


async def an_empty_session(bench: Bench) -> str:
    """A session without a call has a record without rows."""
    kept = await bench.subject.finish(await bench.open())
    must(kept.trained == 0 and kept.reward is None, f"an empty session has {kept.trained} tokens, reward {kept.reward}")
    return "a record without trained tokens"


async def several_samples(bench: Bench) -> str:
    """Five samples of one rollout, in three conversations, are one rollout's: its denominator can be its own."""
    bench.model.say(bench.mark, "a", "bb", "ccc", "dddd", "eeeee")
    session = await bench.open()
    for text in ("x", "y"):
        said = await bench.said(session, [bench.prompt(text)])
        await bench.said(session, [bench.prompt(text), said, user("more")])
    await bench.said(session, [bench.prompt("z")])
    return bench.all_once(await bench.subject.finish(session))


async def sub_agents_and_compaction(bench: Bench) -> str:
    """A sub-agent, a summary in place of history and an edited answer: nothing is trained but what was sampled."""
    bench.model.say(bench.mark, "first answer", "sub answer", "second answer", "after summary", "after edit")
    session = await bench.open()
    opening = [{"role": "system", "content": "Act."}, bench.prompt()]
    first = await bench.said(session, opening)
    sub = await bench.said(session, [{"role": "system", "content": "Help."}, bench.prompt("help")])
    history = [*opening, first, user(f"the helper says {sub['content']}")]
    second = await bench.said(session, history)
    await bench.said(session, [opening[0], user(f"{bench.mark} summary: {second['content']}")])
    edited = {"role": "assistant", "content": f"{first['content']} (edited)"}
    await bench.said(session, [*opening, edited, user("go on")])
    return bench.all_once(await bench.subject.finish(session))


async def policy_versions(bench: Bench) -> str:
    """Every trained token names the weights that sampled it, also when they change in mid-session."""
    session = await bench.open()
    bench.model.say(bench.mark, "one", "two")
    try:
        said = await bench.said(session, [bench.prompt()])
        bench.model.version = 1
        await bench.subject.publish(1)
        await bench.said(session, [bench.prompt(), said, user("go on")])
        kept = await bench.subject.finish(session)
    finally:
        bench.model.version = 0
        await bench.subject.publish(0)
    tokens = [token for row in kept.rows for token in row if token.trained]
    must(all(token.version is not None for token in tokens), "the record names no version")
    counts = [sum(token.version == version for token in tokens) for version in (0, 1)]
    sizes = [len(written.ids) for written in bench.model.of(bench.mark)]
    must(counts == sizes, f"{sizes} tokens were sampled by versions 0 and 1, the record says {counts}")
    return f"{counts[0]} tokens of version 0, {counts[1]} of version 1"


async def killed_and_restarted(bench: Bench) -> str:
    """What was answered before SIGKILL is in the record after a restart."""
    bench.model.say(bench.mark, "before")
    session = await bench.open()
    await bench.said(session, [bench.prompt()])
    await bench.restart()
    return bench.all_once(await bench.subject.finish(session))


async def reproducible(bench: Bench) -> str:
    """Equal seeds give equal answers, other seeds other ones."""
    bench.model.say(bench.mark, Line(is_random=True))
    session = await bench.open()
    texts = [(await bench.said(session, [bench.prompt()], seed=seed))["content"] for seed in (5, 5, 6)]
    must(texts[0] == texts[1] != texts[2], f"seeds 5, 5 and 6 gave {texts}")
    return f"seeds 5, 5 and 6 gave {texts}"


async def nothing_silently_dropped(bench: Bench) -> str:
    """A field nobody knows, and a bias, are passed on, refused or named; they do not vanish."""
    session = await bench.open()
    found = []
    for name, value in (("frobnicate", 3), ("logit_bias", {"5": 1.5})):
        answer = await bench.chat(session, [bench.prompt()], **{name: value})
        is_named = name in answer.text or any(name in item for item in answer.headers.values())
        has_passed = answer.status == 200 and bench.model.asked[-1].get(name) == value
        must(answer.status < 500, f"`{name}` got {answer.shown}")
        must(is_named or has_passed, f"`{name}` was neither passed on nor refused nor named")
        found.append(f"{name}: {'passed on' if has_passed else 'refused' if answer.status >= 400 else 'named'}")
    return ", ".join(found)


async def forbidden_things(bench: Bench) -> str:
    """The agent's key opens neither records nor administration."""
    session = await bench.open()
    probes = [probe for probe in bench.subject.forbidden(session) if probe.what != "reward"]
    if not probes:
        raise NotOffered("the adapter names nothing that is forbidden")
    headers = {"authorization": f"Bearer {session.key}"}
    for probe in probes:
        answer = await ask(probe.url, body=probe.body, method=probe.method, headers=headers)
        refused(answer, f"with the agent's key, {probe.what} ({probe.method} {probe.url.split('/', 3)[-1]})")
    return f"refused: {', '.join(probe.what for probe in probes)}"


async def sizes(bench: Bench) -> str:
    """A prompt beyond the context and a body of 32 MiB are refused; the next call is answered."""
    session = await bench.open()
    found = [refused(await bench.chat(session, [bench.prompt("word " * 4000)]), "a prompt beyond the context")]
    try:
        huge = await bench.chat(session, [bench.prompt("x" * HUGE)], how={"timeout_s": 60.0})
        found.append(refused(huge, "a body of 32 MiB"))
    except WireError:
        found.append("a body of 32 MiB is cut off")
    await bench.said(session, [bench.prompt()])
    return "; ".join(found)


async def served_chat_stream(bench: Bench) -> str:
    """`stream` of chat completions."""
    bench.model.say(bench.mark, "streamed text")
    session = await bench.open()
    answer = await bench.chat(session, [bench.prompt()], stream=True)
    must(answer.status == 200, f"a stream got {answer.shown}")
    chunks = [item["choices"][0]["delta"] for item in answer.events() if isinstance(item, dict) and item.get("choices")]
    text = "".join(delta.get("content") or "" for delta in chunks)
    must(text == "streamed text" and answer.events()[-1] == "[DONE]", f"the stream said {text!r}")
    return bench.all_once(await bench.subject.finish(session))


async def served_parts(bench: Bench) -> str:
    """Content as a list of parts."""
    session = await bench.open()
    parts = [{"type": "text", "text": bench.mark}, {"type": "text", "text": " hi"}]
    await bench.said(session, [{"role": "user", "content": parts}])
    return bench.all_once(await bench.subject.finish(session))


async def served_completions(bench: Bench) -> str:
    """`/v1/completions`."""
    bench.model.say(bench.mark, "completed")
    session = await bench.open()
    body = {"model": session.model, "prompt": f"{bench.mark} Q:", "max_tokens": 64}
    found = answered(await bench.post(session, "/completions", body))
    must("completed" in found["choices"][0]["text"], f"the completion said {found['choices'][0]}")
    return bench.all_once(await bench.subject.finish(session))


async def served_responses(bench: Bench) -> str:
    """`/v1/responses`."""
    bench.model.say(bench.mark, "responded")
    session = await bench.open()
    found = answered(await bench.post(session, "/responses", {"model": session.model, "input": bench.mark}))
    texts = [part["text"] for item in found["output"] if item["type"] == "message" for part in item["content"]]
    must(texts == ["responded"], f"the response said {texts}")
    return bench.all_once(await bench.subject.finish(session))


async def served_messages(bench: Bench) -> str:
    """`/v1/messages` on the bare address, with ``x-api-key``."""
    bench.model.say(bench.mark, "messaged")
    session = await bench.open()
    body = {"model": session.model, "max_tokens": 64, "messages": [bench.prompt()]}
    headers = {"x-api-key": session.key, "anthropic-version": "2023-06-01"}
    found = answered(await ask(f"{session.root}/v1/messages", body=body, headers=headers))
    must(found["content"][0]["text"] == "messaged", f"the message said {found['content']}")
    return bench.all_once(await bench.subject.finish(session))


async def served_models(bench: Bench) -> str:
    """`GET /v1/models`."""
    session = await bench.open()
    found = answered(await bench.post(session, "/models", b"", method="GET"))
    must(bool(found.get("data")), f"the list of models is {found}")
    return f"{[item['id'] for item in found['data']]}"
