"""Eleven defects of a gateway in use, each turned into the behaviour that is expected instead."""

from kifu.testing.capture_bench import ADD, Bench, answered, call_of, logprobs_hold, must, refused
from kifu.testing.capture_contract import NotOffered
from kifu.testing.capture_model import Line
from kifu.testing.capture_wire import ask

EXACT = 0.1 + 0.2


async def identical_calls(bench: Bench) -> str:
    """Three identical calls are three samples."""
    bench.model.say(bench.mark, "one", "two", "three")
    session = await bench.open()
    for _ in range(3):
        await bench.said(session, [bench.prompt()])
    return bench.all_once(await bench.subject.finish(session))


async def every_choice(bench: Bench) -> str:
    """`n = 3` is three samples."""
    bench.model.say(bench.mark, "one", "two", "three")
    session = await bench.open()
    found = answered(await bench.chat(session, [bench.prompt()], n=3))
    told = sorted(choice["message"]["content"] for choice in found["choices"])
    must(told == ["one", "three", "two"], f"the choices are {told}")
    return bench.all_once(await bench.subject.finish(session))


async def constrained_calls(bench: Bench) -> str:
    """A call that must be a tool call is refused, not trained, or trained with what limited it on record."""
    bench.model.say(bench.mark, call_of(1))
    session = await bench.open()
    answer = await bench.chat(session, [bench.prompt()], tools=[ADD], tool_choice="required")
    if 400 <= answer.status < 500:
        return f"refused: {answer.shown}"
    answered(answer)
    kept = await bench.subject.finish(session)
    must(kept.trained == 0 or "support" in kept.text, f"{kept.trained} tokens of a forced call are trained as if free")
    return "answered, and not trained as if free"


async def one_call_without_logprobs(bench: Bench) -> str:
    """One call without logprobs, and one with too few, are not trained; all others keep theirs."""
    lines = [Line(text="two", lacks="logprobs"), Line(text="three", lacks="short")]
    bench.model.say(bench.mark, "one", *lines, "four")
    session = await bench.open()
    for at in range(4):
        await bench.chat(session, [bench.prompt(str(at))])
    kept = await bench.subject.finish(session)
    bench.all_once(kept)
    return logprobs_hold(kept)


async def failure_is_not_zero(bench: Bench) -> str:
    """An agent that failed has no reward, and the record says that it failed."""
    session = await bench.open()
    await bench.said(session, [bench.prompt()])
    kept = await bench.subject.finish(session, has_failed=True)
    must(kept.reward is None, f"the agent failed and its reward is {kept.reward}")
    must(kept.has_failed, "the agent failed and the record does not say so")
    return "no reward, recorded as failed"


async def the_agent_cannot_reward(bench: Bench) -> str:
    """A reward written with the agent's key is refused, and the verifier's stands."""
    session = await bench.open()
    await bench.said(session, [bench.prompt()])
    probes = [probe for probe in bench.subject.forbidden(session) if probe.what == "reward"]
    if not probes:
        raise NotOffered("it has no rewards")
    for probe in probes:
        answer = await ask(
            probe.url, body=probe.body, method=probe.method, headers={"authorization": f"Bearer {session.key}"}
        )
        refused(answer, "a reward written with the agent's key")
    kept = await bench.subject.finish(session, reward=0.25)
    must(kept.reward == 0.25, f"the verifier's reward is 0.25, the record says {kept.reward}")
    return "refused; the verifier's reward stands"


async def nothing_at_random(bench: Bench) -> str:
    """Ten calls are all in the record, and it reads the same twice."""
    bench.model.say(bench.mark, *(f"answer {at}" for at in range(10)))
    session = await bench.open()
    for at in range(10):
        await bench.said(session, [bench.prompt(str(at % 4))])
    kept = await bench.subject.finish(session)
    again = await bench.subject.read(session)
    must(kept.rows == again.rows, "the record reads differently the second time")
    return bench.all_once(kept)


async def exact_reward(bench: Bench) -> str:
    """A reward comes back as it was given, to the last bit of a double."""
    session = await bench.open()
    await bench.said(session, [bench.prompt()])
    kept = await bench.subject.finish(session, reward=EXACT)
    must(kept.reward == EXACT, f"{EXACT!r} came back as {kept.reward!r}")
    return repr(kept.reward)


async def apart(bench: Bench) -> str:
    """Two sessions of one task, one after the other: the second does not overwrite the first."""
    sessions = [await bench.open(bench.mark) for _ in range(2)]
    for at, session in enumerate(sessions):
        bench.model.say(bench.mark, f"answer {at}")
        await bench.said(session, [bench.prompt()])
    kept = [await bench.subject.finish(session) for session in sessions]
    again = [await bench.subject.read(session) for session in sessions]
    texts = [bench.model.decode([token.id for row in item.rows for token in row if token.trained]) for item in again]
    must([f"answer {at}" in text for at, text in enumerate(texts)] == [True, True], f"the records say {texts}")
    must([item.rows for item in kept] == [item.rows for item in again], "a record changed")
    return "two records of one task"


async def survives(bench: Bench) -> str:
    """A finished record is still there after SIGKILL and a restart."""
    session = await bench.open()
    await bench.said(session, [bench.prompt()])
    kept = await bench.subject.finish(session)
    await bench.restart()
    again = await bench.subject.read(session)
    must(again.rows == kept.rows, f"{kept.trained} trained tokens before the restart, {again.trained} after it")
    return bench.all_once(again)


async def dropped_tools(bench: Bench) -> str:
    """A second call that leaves the tools out changes the prompt; each turn is trained under its own."""
    bench.model.say(bench.mark, call_of(1), "two")
    session = await bench.open()
    said = await bench.said(session, [bench.prompt()], tools=[ADD])
    calls = said.get("tool_calls") or [{"id": "none"}]
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "2"}
    await bench.said(session, [bench.prompt(), said, result])
    return bench.all_once(await bench.subject.finish(session))
