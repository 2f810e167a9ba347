"""The sampler: whatever is pending advances together, one token per round, in blocks of fixed shape."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from kifu.engines.recurrent.calls import Call
from kifu.engines.recurrent.decode import score_token
from kifu.engines.recurrent.model import ActorCritic
from kifu.engines.recurrent.prefixes import BLOCK, Prefix, PrefixTree
from kifu.engines.recurrent.weights import load_weights
from kifu.errors import BoundaryError, EngineFailure, crossing
from kifu.policy import EngineSpec, Generation, Request, ScoreRequest, Scores, Weights
from kifu.records import Finish, as_floats


class RecurrentSampler:
    """Implements `Sampler` on the event loop that calls it; a block takes well under a millisecond.

    A prefix is computed once for all contexts that hold it. Rows are computed in blocks of one shape and sampled one by
    one, so a generation does not depend on its neighbours.

    Args:
        model: a copy that only this sampler uses.
        spec: context limit and number of contexts kept.
        version: of the model's weights.
    """

    def __init__(self, model: ActorCritic, *, spec: EngineSpec, version: int) -> None:
        self.version = version
        self.positions_fed = 0
        """Token positions forwarded so far, each prefix counted once; scoring is not counted."""
        self.positions_refed = 0
        """Of those, positions computed again after an eviction."""
        self._model = model
        self._spec = spec
        self._tree = PrefixTree(model)
        self._kept: OrderedDict[str, list[Prefix]] = OrderedDict()
        self._evicted: dict[str, int] = {}
        self._calls: list[Call] = []
        self._driver: asyncio.Task[None] | None = None
        self._scoring = 0
        self._loads = 0
        self._waiters: list[asyncio.Future[None]] = []

    async def sample(self, request: Request) -> Generation:
        """Continue one context by one turn.

        Raises:
            EngineFailure: an empty or too long context, ids outside the vocabulary, or settings that need text.
        """
        self._check(request)
        while self._loads:
            await self._changed()
        call = self._start(request)
        try:
            return await call.done
        finally:
            self._end(call)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Score recorded tokens, other calls in between; a load waits until all are done."""
        while self._loads:
            await self._changed()
        self._scoring += 1
        try:
            found = []
            for start in range(0, len(requests), BLOCK):
                found += self._score(requests[start : start + BLOCK])
                await asyncio.sleep(0)
            return found
        finally:
            self._scoring -= 1
            self._wake()

    async def load(self, weights: Weights) -> None:
        """Wait for running calls, hold back new ones, take the weights and forget every state."""
        self._loads += 1
        try:
            while self._calls or self._scoring:
                await self._changed()
            load_weights(self._model, weights)
            self.version = weights.version
            self._kept.clear()
            self._evicted.clear()
            self._tree = PrefixTree(self._model)
        finally:
            self._loads -= 1
            self._wake()

    def release(self, context: str) -> None:
        """Forget a context; unknown names are fine."""
        self._evicted.pop(context, None)
        self._tree.let_go(self._kept.pop(context, []))

    def _check(self, request: Request) -> None:
        where, ids, spec = f"context {request.context}", request.token_ids, self._spec
        if not ids.size:
            raise EngineFailure(f"{where}: is empty; a policy needs at least one token to look at")
        _check_ids(where, ids=ids, spec=spec)
        if request.sampling.stop_strings or request.sampling.untrainable:
            raise EngineFailure(
                f"{where}: the recurrent engine has neither stop strings (found {request.sampling.stop_strings}) nor "
                f"transforms of logits (found {request.sampling.untrainable}); use stop_ids"
            )

    def _start(self, request: Request) -> Call:
        loop = asyncio.get_running_loop()
        call = Call(
            request=request,
            done=loop.create_future(),
            path=[],
            max_context=self._spec.max_context,
            lost=self._evicted.pop(request.context, 0),
        )
        self._tree.extend(call.path, request.token_ids.tolist())
        self._calls.append(call)
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
            self._driver = loop.create_task(self._drive())
        return call

    def _end(self, call: Call) -> None:
        """Take a call out, whether it finished, failed or was cancelled, and keep what it computed."""
        self._calls.remove(call)
        name = call.request.context
        self._tree.let_go(self._kept.pop(name, []))
        self._kept[name] = call.path
        if len(self._kept) > self._spec.machine.max_slots:
            self._evict()
        self._wake()

    def _evict(self) -> None:
        """Forget contexts without a running call, the one used longest ago first, until the rest fits."""
        running = {call.request.context for call in self._calls}
        for oldest in [name for name in self._kept if name not in running]:
            if len(self._kept) <= self._spec.machine.max_slots:
                return
            path = self._kept.pop(oldest)
            self._evicted[oldest] = sum(node.state is not None for node in path)
            self._tree.let_go(path)

    async def _drive(self) -> None:
        """Advance all running calls until none is left; calls that arrive meanwhile join the next round."""
        loop = asyncio.get_running_loop()
        while mine := [call for call in self._calls if call.done.get_loop() is loop]:
            waiting = [call for call in mine if not call.done.done()]
            try:
                self._round(waiting)
            except Exception as cause:
                for call in waiting:
                    if not call.done.done():
                        call.done.set_exception(EngineFailure(f"the forward failed: {type(cause).__name__}: {cause}"))
            await asyncio.sleep(0)

    def _round(self, calls: Sequence[Call]) -> None:
        due: dict[int, Prefix] = {}
        for call in calls:
            try:
                with crossing(EngineFailure, f"context {call.request.context}"):
                    found = call.advance(self._tree)
            except BoundaryError as failure:
                call.done.set_exception(failure)
                continue
            if isinstance(found, Finish):
                call.done.set_result(call.generation(found, version=self.version, dtype=_dtype(self._model)))
            elif id(found) not in due:
                due[id(found)] = found
                self.positions_fed += 1
                self.positions_refed += found.depth <= call.lost
        self._tree.feed(list(due.values()))

    def _score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        paths: list[list[Prefix]] = []
        try:
            for request in requests:
                _check_score(request, spec=self._spec)
                paths.append([])
                last = int(request.positions.max()) if request.positions.size else 0
                self._tree.extend(paths[-1], request.token_ids[:last].tolist())
            for depth in range(max(map(len, paths), default=0)):
                due = {id(path[depth]): path[depth] for path in paths if len(path) > depth}
                self._tree.feed([node for node in due.values() if node.state is None])
            return [_scores(request, path) for request, path in zip(requests, paths, strict=True)]
        finally:
            for path in paths:
                self._tree.let_go(path)

    async def _changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _scores(request: ScoreRequest, path: Sequence[Prefix]) -> Scores:
    temperature = request.sampling.temperature
    supports = request.support or (None,) * request.positions.size
    rows = []
    for position, support in zip(request.positions.tolist(), supports, strict=True):
        prefix = path[position - 1]
        token = int(request.token_ids[position])
        scored = score_token(prefix, token, temperature=1.0 if temperature is None else temperature, support=support)
        rows.append((*scored, prefix.value))
    logprobs, entropy, value = zip(*rows, strict=True) if rows else ((), (), ())
    return Scores(logprobs=as_floats(logprobs), entropy=as_floats(entropy), value=as_floats(value))


def _check_ids(where: str, *, ids: np.ndarray, spec: EngineSpec) -> None:
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= spec.vocabulary):
        raise EngineFailure(f"{where}: id {int(ids.max())} is outside the vocabulary of {spec.vocabulary}")
    if ids.size > spec.max_context:
        raise EngineFailure(f"{where}: {ids.size} tokens, the engine holds {spec.max_context}; raise max_context")


def _check_score(request: ScoreRequest, *, spec: EngineSpec) -> None:
    positions = request.positions
    fed = int(positions.max()) if positions.size else 0
    _check_ids("score", ids=request.token_ids[:fed], spec=spec)
    if positions.size and (int(positions.min()) < 1 or int(positions.max()) >= request.token_ids.size):
        raise EngineFailure(
            f"score: positions {int(positions.min())} to {int(positions.max())}, expected 1 to "
            f"{request.token_ids.size - 1}: a scored token has a context"
        )


def _dtype(model: ActorCritic) -> str:
    return str(model.embedding.dtype).removeprefix("torch.")
