"""Conformance of a `Sampler`: what it says about its tokens is true, and a generation depends on nothing else.

Axes: ``T`` tokens of a context, ``N`` tokens written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kifu.errors import KifuError
from kifu.policy import Engine, Generation, Request, Sampler, ScoreRequest
from kifu.records import Finish, Floats, Ints, Sampling, SupportKind, as_floats, as_ints

Answer = TypeVar("Answer")
Recompute = Callable[[ScoreRequest], npt.NDArray[np.floating]]
"""Log-probabilities of a request's tokens, by other means than the sampler's own code."""


class SamplerBuilder(Protocol):
    """Brings up the engine to check."""

    def __call__(self, *, max_slots: int) -> Engine:
        """A fresh engine that keeps at most so many contexts."""
        ...


class SamplerCheckError(KifuError, AssertionError):
    """A sampler breaks its contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerCheck:
    """What to check with."""

    prompts: tuple[tuple[int, ...], ...]
    """At least three contexts the engine accepts, of different lengths."""
    allowed: tuple[tuple[int, ...], ...] = ()
    """Candidates at each position of a turn, for the grammar; a position with one is forced. Empty skips it."""
    settings: tuple[Sampling, ...] = (
        Sampling(temperature=0.6),
        Sampling(temperature=1.0),
        Sampling(temperature=1.3),
        Sampling(temperature=1.0, top_p=0.9),
        Sampling(temperature=1.0, top_k=20),
        Sampling(temperature=1.0, min_p=0.02),
        Sampling(temperature=1.3, top_p=0.9, top_k=20),
    )
    tokens: int = 8
    """Written per turn."""
    tolerance: float = 1e-4
    """Nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A grammar that lists the candidates of every position; it ends after the last."""

    allowed_at: tuple[tuple[int, ...], ...]

    @property
    def digest(self) -> str:
        """Names the grammar."""
        return f"steps {self.allowed_at}"

    def allowed(self, prefix: tuple[int, ...]) -> Ints | None:
        """Candidates after ``prefix``."""
        return as_ints(self.allowed_at[len(prefix)]) if len(prefix) < len(self.allowed_at) else as_ints([])


def check_sampler(build: SamplerBuilder, check: SamplerCheck, *, recompute: Recompute | None = None) -> list[str]:
    """Run every check; return what was found, one line each.

    Args:
        build: makes the engine; called a few times.
        check: prompts, settings, tolerance.
        recompute: an independent computation of log-probabilities; without it only the sampler's own `score` is used.

    Raises:
        SamplerCheckError: what was found, what was expected.
    """
    if len(check.prompts) < 3:
        raise SamplerCheckError(f"a sampler is checked with at least 3 prompts, got {len(check.prompts)}")
    engine = build(max_slots=16)
    found = [
        _with(engine, check_truth(engine.sampler, check, recompute)),
        _with(engine, check_forced_tokens(engine.sampler, check)),
        _with(engine, check_limits(engine.sampler, check)),
        _with(engine, check_release(engine.sampler, check)),
        _with(engine, check_versions(engine, check)),
    ]
    if engine.reproducible:
        found.append(check_purity(build, check))
    else:
        found.append("the engine does not promise reproducible generations; purity was not checked")
    return found


async def check_truth(sampler: Sampler, check: SamplerCheck, recompute: Recompute | None) -> str:
    """Recorded logprobs are those of the distribution sampled from, whatever the transforms."""
    worst = 0.0
    for number, setting in enumerate(check.settings):
        grammars = [None, Steps(allowed_at=check.allowed)] if check.allowed else [None]
        for grammar in grammars:
            sampling = replace(setting, stream=f"truth{number}")
            request = _request(check, 0, name=f"truth{number}{grammar is None}", sampling=sampling)
            request = replace(request, constraint=grammar)
            generation = await sampler.sample(request)
            _well_formed(generation, setting)
            question = _question(request, generation)
            score = (await sampler.score([question]))[0]
            recorded = generation.logprobs[generation.sampled]
            worst = max(
                worst, _distance(recorded, score.logprobs, what=f"score under {setting}", tolerance=check.tolerance)
            )
            if recompute is not None:
                again = as_floats(recompute(question))
                worst = max(
                    worst, _distance(recorded, again, what=f"recomputation under {setting}", tolerance=check.tolerance)
                )
    return f"logprobs of {len(check.settings)} settings recomputed, largest difference {worst:.2e} nats"


async def check_forced_tokens(sampler: Sampler, check: SamplerCheck) -> str:
    """A position with one candidate is written, and nobody sampled it."""
    if not check.allowed:
        return "no grammar given; forced tokens were not checked"
    request = replace(
        _request(check, 1, name="forced", sampling=Sampling(stream="forced")),
        constraint=Steps(allowed_at=check.allowed),
        max_new_tokens=len(check.allowed) + 1,
    )
    generation = await sampler.sample(request)
    _expect(generation.token_ids.size == len(check.allowed), "a grammar of n positions", generation.token_ids)
    _expect(generation.finish is Finish.STOP, "a complete grammar finishes with STOP", generation.finish)
    for at, candidates in enumerate(check.allowed):
        forced = len(candidates) == 1
        _expect(int(generation.token_ids[at]) in candidates, f"position {at} stays in the grammar", candidates)
        _expect(bool(generation.sampled[at]) is not forced, f"sampled is {not forced} at position {at}", candidates)
        _expect(bool(np.isnan(generation.logprobs[at])) is forced, f"position {at}: NaN only if forced", candidates)
    return "forced tokens are written without a logprob"


async def check_limits(sampler: Sampler, check: SamplerCheck) -> str:
    """A turn ends at its token limit or with a stop token, which is kept."""
    request = _request(check, 2, name="limits", sampling=Sampling(stream="limits"))
    free = await sampler.sample(request)
    _expect(free.finish is Finish.LENGTH, "without stop ids a turn ends by LENGTH", free.finish)
    _expect(free.token_ids.size == check.tokens, f"{check.tokens} tokens", free.token_ids.size)
    stop = int(free.token_ids[check.tokens // 2])
    stopping = replace(request, sampling=replace(request.sampling, stop_ids=(stop,)), context="limits2")
    stopped = await sampler.sample(stopping)
    first = free.token_ids.tolist().index(stop)
    _expect(stopped.finish is Finish.STOP, "a stop id ends the turn with STOP", stopped.finish)
    _expect(stopped.token_ids.tolist() == free.token_ids[: first + 1].tolist(), "same tokens", stopped.token_ids)
    greedy = replace(request, sampling=Sampling(temperature=None, stream="a"), context="limits3")
    other = replace(greedy, sampling=Sampling(temperature=None, stream="b"), context="limits4")
    one, two = await sampler.sample(greedy), await sampler.sample(other)
    _expect(_same(one, two), "greedy does not depend on the stream", (one.token_ids, two.token_ids))
    return "turns end at their limit or with the stop token"


async def check_release(sampler: Sampler, check: SamplerCheck) -> str:
    """Releasing is always fine, and a released context gives the same tokens again."""
    sampler.release("never seen")
    request = _request(check, 0, name="released", sampling=Sampling(stream="released"))
    first = await sampler.sample(request)
    sampler.release("released")
    sampler.release("released")
    _expect(_same(first, await sampler.sample(request)), "the same tokens after release", first.token_ids)
    return "contexts can be released at any time"


async def check_versions(engine: Engine, check: SamplerCheck) -> str:
    """Generations carry the version of their weights; `load` waits for calls in progress."""
    sampler = engine.sampler
    first, second = engine.trainer.publish(), engine.trainer.publish()
    _expect(second.version == first.version + 1, "versions count publishes", (first.version, second.version))
    await sampler.load(first)
    _expect(sampler.version == first.version, f"version {first.version} after load", sampler.version)
    running = asyncio.ensure_future(
        sampler.sample(_request(check, 0, name="running", sampling=Sampling(stream="running")))
    )
    await asyncio.sleep(0)
    await sampler.load(second)
    _expect(running.done(), "load waits for calls in progress", running)
    before = await running
    after = await sampler.sample(_request(check, 0, name="after", sampling=Sampling(stream="running")))
    _expect(before.policy_version == first.version, "the running call has the old version", before.policy_version)
    _expect(after.policy_version == second.version, "the next call has the new version", after.policy_version)
    return "versions follow the weights"


def check_purity(build: SamplerBuilder, check: SamplerCheck) -> str:
    """Tokens and logprobs are bit for bit the same alone, among others, in other slots, after evictions."""
    alone = build(max_slots=16)
    wanted = [
        _run(alone, _rollout(alone.sampler, check, number, name=f"p{number}")) for number in range(len(check.prompts))
    ]
    orders: list[tuple[str, int, list[int]]] = [
        ("among others", 16, [*range(len(check.prompts))]),
        ("among others in other slots", 16, [*reversed(range(len(check.prompts)))]),
        ("with evictions between turns", 2, [*range(len(check.prompts))]),
    ]
    for what, max_slots, order in orders:
        engine = build(max_slots=max_slots)
        found = _run(engine, _together(engine.sampler, check, order))
        for number, rollout in zip(order, found, strict=True):
            for turn, (one, two) in enumerate(zip(wanted[number], rollout, strict=True)):
                _expect(_same(one, two), f"{what}: prompt {number}, turn {turn} as when alone", two.token_ids)
        _close(engine)
    _close(alone)
    return "generations are bit-identical alone, among others, in other slots and after evictions"


async def _together(sampler: Sampler, check: SamplerCheck, order: Sequence[int]) -> list[list[Generation]]:
    return list(await asyncio.gather(*(_rollout(sampler, check, number, name=f"p{number}") for number in order)))


async def _rollout(sampler: Sampler, check: SamplerCheck, number: int, *, name: str) -> list[Generation]:
    """Three turns, the next prompt standing in for what the environment answers."""
    context = list(check.prompts[number])
    observation = list(check.prompts[(number + 1) % len(check.prompts)])
    found = []
    for turn in range(3):
        sampling = Sampling(temperature=1.1, top_p=0.95, stream=name)
        request = replace(_request(check, number, name=name, sampling=sampling), token_ids=as_ints(context), turn=turn)
        found.append(await sampler.sample(request))
        context += found[-1].token_ids.tolist() + observation
    return found


def _request(check: SamplerCheck, number: int, *, name: str, sampling: Sampling) -> Request:
    return Request(
        context=name,
        token_ids=as_ints(check.prompts[number]),
        sampling=sampling,
        turn=0,
        max_new_tokens=check.tokens,
    )


def _question(request: Request, generation: Generation) -> ScoreRequest:
    at = np.flatnonzero(generation.sampled)
    supports = generation.support or (None,) * generation.token_ids.size
    return ScoreRequest(
        token_ids=as_ints(np.concatenate([request.token_ids, generation.token_ids])),
        positions=as_ints(at + request.token_ids.size),
        sampling=generation.sampling,
        support=tuple(supports[int(place)] for place in at),
    )


def _well_formed(generation: Generation, setting: Sampling) -> None:
    recorded = generation.logprobs[generation.sampled]
    _expect(bool(np.isfinite(recorded).all() and (recorded <= 0).all()), f"{setting}: finite logprobs <= 0", recorded)
    for at, support in enumerate(generation.support or ()):
        if support is not None and generation.sampled[at]:
            token = int(generation.token_ids[at])
            _expect(support.contains(token) is not False, f"{setting}: token {at} in its own support", token)
            lone = support.kind is SupportKind.IDS and support.ids.size == 1
            _expect(not lone, f"{setting}: a token with one choice was not sampled", token)


def _distance(recorded: Floats, found: Floats, *, what: str, tolerance: float) -> float:
    _expect(recorded.size == found.size, f"{what}: {recorded.size} logprobs", found.size)
    worst = float(np.abs(recorded - found).max()) if recorded.size else 0.0
    _expect(worst <= tolerance, f"{what}: recorded logprobs within {tolerance} nats", worst)
    return worst


def _same(one: Generation, two: Generation) -> bool:
    return (
        one.token_ids.tobytes() == two.token_ids.tobytes()
        and one.logprobs.tobytes() == two.logprobs.tobytes()
        and one.sampled.tobytes() == two.sampled.tobytes()
        and one.finish is two.finish
    )


def _expect(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise SamplerCheckError(f"sampler: expected {expected}; found {found}")


def _with(engine: Engine, check: Coroutine[Any, Any, str]) -> str:
    return _run(engine, check)


def _run(engine: Engine, work: Awaitable[Answer]) -> Answer:
    async def bounded() -> Answer:
        return await asyncio.wait_for(work, timeout=300)

    try:
        return asyncio.run(bounded())
    except TimeoutError as cause:
        raise SamplerCheckError(f"sampler: a call did not come back within 300 s ({engine.facts})") from cause


def _close(engine: Engine) -> None:
    close = getattr(engine.sampler, "close", None)
    if callable(close):
        close()
