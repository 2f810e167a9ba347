"""The sampler against a GRU written out in numpy, and against itself in other company."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from kifu.errors import EngineFailure
from kifu.policy import Engine, Generation, Request, ScoreRequest, inverse_cdf, uniform
from kifu.records import Finish, Sampling, Support, as_ints

T = TypeVar("T")
Make = Callable[..., Engine]
Ask = Callable[..., Request]

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=1.3),
    Sampling(top_k=3),
    Sampling(top_p=0.7, temperature=1.3),
    Sampling(min_p=0.2),
    Sampling(top_k=6, top_p=0.8, min_p=0.1, temperature=0.9),
]


def _kept(probabilities: np.ndarray, sampling: Sampling) -> list[int]:
    """The ids left by top-k, then top-p, then min-p, one at a time as their definitions say."""
    order = sorted(range(probabilities.size), key=lambda v: (-probabilities[v], v))
    order = order[: sampling.top_k or len(order)]
    if sampling.top_p is not None:
        total, mass, chosen = sum(probabilities[v] for v in order), 0.0, []
        for v in order:
            chosen.append(v)
            mass += probabilities[v] / total
            if mass >= sampling.top_p:
                break
        order = chosen
    if sampling.min_p is not None:
        order = [v for v in order if probabilities[v] >= sampling.min_p * probabilities[order[0]]]
    return sorted(order)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 1e-4)])
async def test_tokens_and_logprobs_are_those_of_the_written_out_model(
    make: Make, ask: Ask, numpy_policy: Callable[..., Any], sampling: Sampling, dtype: str, tolerance: float
) -> None:
    """Every token, its logprob, its support, entropy and the value are recomputed from the published arrays."""
    engine = make(dtype=dtype)
    policy = numpy_policy(engine.trainer.publish().tensors)
    for stream in ("a", "b", "c"):
        found = await engine.sampler.sample(ask([1, 2, 3], stream=stream, turn=2, limit=5, sampling=sampling))
        context, entropies = [1, 2, 3], []
        assert found.value == pytest.approx(policy.value(context), abs=tolerance)
        for at, token in enumerate(found.token_ids.tolist()):
            temperature = sampling.temperature or 1.0
            kept = _kept(policy.distribution(context, temperature), sampling)
            chances = policy.distribution(context, temperature, kept)
            if len(kept) > 1:
                assert kept[inverse_cdf(chances[kept], uniform(stream, turn=2, position=at))] == token
                assert found.logprobs[at] == pytest.approx(np.log(chances[token]), abs=tolerance)
                support = found.support[at] if found.support else None
                assert (support is None) == (len(kept) == chances.size)
                assert support is None or [v for v in range(chances.size) if support.contains(v)] == kept
                entropies.append(-sum(chances[v] * np.log(chances[v]) for v in kept))
            else:
                assert not found.sampled[at]
            context.append(token)
        assert found.entropy == pytest.approx(np.mean(entropies), abs=tolerance)
        assert found.entropies is not None
        assert found.entropies[found.sampled] == pytest.approx(entropies, abs=tolerance)


async def test_greedy_takes_the_most_likely_at_temperature_one(
    make: Make, ask: Ask, numpy_policy: Callable[..., Any]
) -> None:
    """Truncation does not change the argmax and is not applied to its logprob."""
    engine = make()
    policy = numpy_policy(engine.trainer.publish().tensors)

    found = await engine.sampler.sample(ask([4, 7], limit=6, sampling=Sampling(temperature=None, top_k=2)))

    context = [4, 7]
    for at, token in enumerate(found.token_ids.tolist()):
        chances = policy.distribution(context, 1.0)
        assert token == int(np.argmax(chances))
        assert found.logprobs[at] == pytest.approx(np.log(chances[token]), abs=1e-4)
        context.append(token)
    assert len(found.token_ids) == 6


def _same(a: Generation, b: Generation) -> bool:
    return (
        a.token_ids.tobytes() == b.token_ids.tobytes()
        and a.logprobs.tobytes() == b.logprobs.tobytes()
        and (a.value, a.entropy, a.finish) == (b.value, b.entropy, b.finish)
    )


@pytest.mark.parametrize("kind", ["gru", "feedforward"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
async def test_a_rollout_is_bit_identical_alone_and_in_any_company(make: Make, ask: Ask, kind: str, dtype: str) -> None:
    """Alone; last of 71 with other lengths; first of them; with a cache of two contexts that evicts it every turn."""
    assert make(kind=kind, dtype=dtype).reproducible

    async def play(engine: Engine, company: int, at: int) -> list[Generation]:
        async def one(name: str, ids: list[int], turns: int) -> list[Generation]:
            found = []
            for turn in range(turns):
                found.append(await engine.sampler.sample(ask(ids, stream=name, turn=turn, limit=3)))
                ids = [*ids, *found[-1].token_ids.tolist(), turn]
            return found

        others = [one(f"other{i}", [i % 11, (i * 3) % 11] * (1 + i % 4), 1 + i % 3) for i in range(company)]
        others.insert(at, one("me", [5, 5, 6, 0], 4))
        return (await asyncio.gather(*others))[at]

    alone = await play(make(kind=kind, dtype=dtype), 0, 0)
    for company, at, slots in ((70, 70, 128), (70, 0, 128), (40, 17, 2)):
        engine = make(kind=kind, dtype=dtype, max_slots=slots)
        together = await play(engine, company, at)
        assert all(_same(a, b) for a, b in zip(alone, together, strict=True))
        assert (engine.sampler.positions_refed > 0) == (slots == 2)  # type: ignore[attr-defined]


async def test_every_position_is_fed_once_and_a_shared_prompt_once_per_group(make: Make, ask: Ask) -> None:
    """Eight members with one prompt of five, three turns each; then the same again after an eviction."""
    engine = make()
    sampler: Any = engine.sampler
    prompt = [1, 2, 3, 4, 5]

    async def member(name: str) -> list[int]:
        ids = list(prompt)
        for turn in range(3):
            generation = await sampler.sample(ask(ids, stream=name, turn=turn, limit=2))
            ids += [*generation.token_ids.tolist(), 6]
        return ids[:-2]  # the last token written and the observation after it were never fed

    fed = await asyncio.gather(*(member(f"m{i}") for i in range(8)))
    distinct = {tuple(ids[:n]) for ids in fed for n in range(1, len(ids) + 1)}

    assert sampler.positions_fed == len(distinct)
    assert sampler.positions_refed == 0


async def test_positions_lost_to_an_eviction_are_reported_when_they_are_fed_again(make: Make, ask: Ask) -> None:
    """One slot: the second context pushes the first one out; its four positions are computed twice."""
    sampler: Any = make(max_slots=1).sampler
    await sampler.sample(ask([1, 2, 3, 4], context="first", limit=1))
    await sampler.sample(ask([9], context="second", limit=1))
    await sampler.sample(ask([1, 2, 3, 4, 5], context="first", limit=1))

    assert (sampler.positions_fed, sampler.positions_refed) == (4 + 1 + 5, 4)


async def test_a_released_context_is_forgotten_and_its_relatives_are_not(make: Make, ask: Ask) -> None:
    """A fork keeps the shared part alive; after both are released everything is computed anew."""
    sampler: Any = make().sampler
    await sampler.sample(ask([1, 2, 3], context="parent", limit=1))
    await sampler.sample(ask([1, 2, 8], context="fork", limit=1))
    assert sampler.positions_fed == 4

    sampler.release("parent")
    sampler.release("never heard of")
    await sampler.sample(ask([1, 2, 3], context="again", limit=1))
    assert sampler.positions_fed == 5

    for name in ("fork", "again"):
        sampler.release(name)
    await sampler.sample(ask([1, 2, 3], context="anew", limit=1))
    assert sampler.positions_fed == 8


async def test_a_forced_token_is_written_but_not_sampled(make: Make, ask: Ask, words: Callable[..., Any]) -> None:
    """One choice at the first token, none at the second; the grammar ends the turn and its digest is recorded."""
    grammar = words((2, 5, 9), (7,))

    found = await make().sampler.sample(ask([1], constraint=grammar, limit=8))

    assert found.token_ids[0] in (2, 5, 9)
    assert found.token_ids.tolist()[1:] == [7]
    assert found.sampled.tolist() == [True, False]
    assert np.isnan(found.logprobs[1])
    assert found.entropies is not None
    assert np.isnan(found.entropies).tolist() == [False, True]
    assert found.support is not None
    assert found.support[0] is not None
    assert found.support[0].ids.tolist() == [2, 5, 9]
    assert found.support[1] is None
    assert (found.finish, found.sampling.grammar) == (Finish.STOP, grammar.digest)


async def test_a_turn_ends_at_a_stop_token_its_limit_or_the_end_of_the_context(make: Make, ask: Ask) -> None:
    """All ids stop; none does; a context of four leaves room for one; a full one for none."""
    sampler = make(max_context=4).sampler

    stopped = await sampler.sample(ask([1], stream="a", sampling=Sampling(stop_ids=tuple(range(11)))))
    limited = await sampler.sample(ask([1], stream="b", limit=2))
    cut = await sampler.sample(ask([1, 2, 3], stream="c"))
    full = await sampler.sample(ask([1, 2, 3, 4], stream="d"))

    assert [(len(g.token_ids), g.finish) for g in (stopped, limited, cut, full)] == [
        (1, Finish.STOP),
        (2, Finish.LENGTH),
        (1, Finish.CONTEXT),
        (0, Finish.CONTEXT),
    ]


async def test_new_weights_wait_for_running_calls_and_then_replace_every_kept_state(make: Make, ask: Ask) -> None:
    """A call started before the load is answered by the old version, one started during it by the new one."""
    engine, other = make(seed=3), make(seed=4)
    newer = replace(other.trainer.publish(), version=7)
    sampler = engine.sampler
    before = await sampler.sample(ask([1, 2], context="x"))

    running = asyncio.create_task(sampler.sample(ask([1, 2, 3, 4, 5, 6], stream="run", limit=20)))
    await asyncio.sleep(0)
    load = asyncio.create_task(sampler.load(newer))
    await asyncio.sleep(0)
    during = asyncio.create_task(sampler.sample(ask([1, 2], context="x")))
    await asyncio.gather(running, load, during)

    assert (before.policy_version, running.result().policy_version, during.result().policy_version) == (0, 0, 7)
    assert sampler.version == 7
    fresh = await other.sampler.sample(ask([1, 2], context="x"))
    assert _same(during.result(), fresh)
    assert not _same(during.result(), before)


async def test_scores_equal_the_sampled_logprobs_and_do_not_disturb_a_running_call(make: Make, ask: Ask) -> None:
    """Scoring 40 recorded turns while another call runs; equal to the last float32 bit."""
    engine = make()
    sampling = Sampling(temperature=0.8, top_p=0.9)
    written = await asyncio.gather(
        *(engine.sampler.sample(ask([i % 11, 3], stream=f"s{i}", sampling=sampling)) for i in range(40))
    )
    questions = [
        ScoreRequest(
            token_ids=as_ints([i % 11, 3, *generation.token_ids.tolist()]),
            positions=as_ints(2 + np.flatnonzero(generation.sampled)),
            sampling=generation.sampling,
            support=tuple(generation.support[at] for at in np.flatnonzero(generation.sampled))
            if generation.support
            else None,
        )
        for i, generation in enumerate(written)
    ]

    scores, running = await asyncio.gather(
        engine.sampler.score(questions), engine.sampler.sample(ask([5, 3], stream="s5", sampling=sampling))
    )

    for generation, score in zip(written, scores, strict=True):
        np.testing.assert_array_equal(score.logprobs, generation.logprobs[generation.sampled])
        assert score.value is not None
        assert score.value[0] == np.float32(generation.value or 0.0)
        assert generation.entropy == pytest.approx(score.entropy.mean(), abs=1e-6)
    assert _same(running, written[5])


async def test_a_cancelled_or_failing_call_leaves_the_others_alone(make: Make, ask: Ask) -> None:
    """One caller gives up, one has a grammar that raises; the third gets what it gets alone."""

    class Broken:
        digest = "broken"

        def allowed(self, prefix: tuple[int, ...]) -> None:
            raise ZeroDivisionError("grammar")

    expected = await make().sampler.sample(ask([1, 2, 3], stream="me", limit=9))
    sampler = make().sampler
    quitter = asyncio.create_task(sampler.sample(ask([4, 5, 6, 7], stream="quit", limit=30)))
    broken = asyncio.create_task(sampler.sample(ask([4], stream="broken", constraint=Broken())))
    mine = asyncio.create_task(sampler.sample(ask([1, 2, 3], stream="me", limit=9)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    quitter.cancel()

    assert _same(await mine, expected)
    with pytest.raises(asyncio.CancelledError):
        await quitter
    with pytest.raises(EngineFailure, match="context broken failed: ZeroDivisionError: grammar"):
        await broken


def test_one_sampler_serves_one_event_loop_after_another(make: Make, ask: Ask) -> None:
    """A loop that was interrupted in the middle of calls leaves nothing behind that a later loop would wait for."""
    sampler = make().sampler

    async def interrupted() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.gather(*(sampler.sample(ask([i], stream=str(i), limit=60)) for i in range(11)), _forever())

    with pytest.raises(TimeoutError):
        asyncio.run(interrupted())
    found = asyncio.run(_bounded(sampler.sample(ask([1, 2], stream="later"))))
    asyncio.run(_bounded(sampler.load(make(seed=4).trainer.publish())))

    assert len(found.token_ids) == 4


async def _forever() -> None:
    await asyncio.Event().wait()


async def _bounded(call: Awaitable[T]) -> T:
    async with asyncio.timeout(5):
        return await call


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"ids": []}, "is empty"),
        ({"ids": [11]}, "outside the vocabulary of 11"),
        ({"ids": [1] * 65}, "holds 64"),
        ({"ids": [1], "sampling": Sampling(stop_strings=("x",))}, "stop strings"),
        ({"ids": [1], "sampling": Sampling(untrainable=("logit_bias",))}, "logit_bias"),
    ],
)
async def test_calls_that_cannot_be_answered_are_refused(
    make: Make, ask: Ask, bad: dict[str, Any], message: str
) -> None:
    """The message says what was found."""
    with pytest.raises(EngineFailure, match=message):
        await make().sampler.sample(ask(bad.pop("ids"), **bad))


@pytest.mark.parametrize(
    ("positions", "support", "message"),
    [([0], None, "expected 1 to 2"), ([3], None, "expected 1 to 2"), ([1], Support.of([4, 5]), "outside its support")],
)
async def test_questions_that_make_no_sense_are_refused(
    make: Make, positions: list[int], support: Support | None, message: str
) -> None:
    """No context before the first token, no token after the last, no probability outside the support."""
    question = ScoreRequest(
        token_ids=as_ints([1, 2, 3]),
        positions=as_ints(positions),
        sampling=Sampling(),
        support=None if support is None else (support,),
    )

    with pytest.raises(EngineFailure, match=message):
        await make().sampler.score([question])


async def test_the_control_without_memory_sees_the_last_token_only(make: Make, ask: Ask) -> None:
    """Two histories that end alike: one distribution for the feed-forward control, two for the GRU."""
    for kind, is_same in (("feedforward", True), ("gru", False)):
        sampler = make(kind=kind).sampler
        first = await sampler.sample(ask([1, 4, 2, 9], stream="x", context="a", limit=1))
        second = await sampler.sample(ask([8, 9], stream="x", context="b", limit=1))

        assert (first.entropy == second.entropy) == is_same
        assert (first.value == second.value) == is_same
