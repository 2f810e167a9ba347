"""The sampler: an asynchronous front to the thread that runs the model."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from kifu.engines.hf.backend import choose_backend
from kifu.engines.hf.head import Head
from kifu.engines.hf.loading import CausalModel
from kifu.engines.hf.weights import fill, merge
from kifu.engines.hf.work import Scoring, Writing
from kifu.engines.hf.worker import Command, Stats, Worker
from kifu.errors import UsageError
from kifu.policy import Generation, Machine, Request, ScoreRequest, Scores, Weights
from kifu.records import Sampling


class HfSampler:
    """Implements `Sampler` with any causal language model of transformers.

    Args:
        model: a copy of the model that nobody else changes.
        machine: slots, threads.
        max_context: tokens a context can hold.
        base: unadapted float32 weights by name; needed to load adapters.
        adapter_scale: alpha / rank of the adapters that will be loaded.
    """

    def __init__(
        self,
        model: CausalModel,
        *,
        machine: Machine,
        max_context: int,
        base: Mapping[str, Tensor] | None = None,
        adapter_scale: float | None = None,
    ) -> None:
        self._model = model
        self._max_context = max_context
        self._base = base
        self._adapter_scale = adapter_scale
        self._tokenizer: Tokenizer | None = None
        backend = choose_backend(model, num_slots=machine.max_slots, capacity=max_context)
        self.backend = backend.name
        self.rows = "those of one context" if backend.rows is None else str(backend.rows)
        self.reproducible = backend.reproducible
        device = model.device.type
        self._worker = Worker(
            backend=backend,
            head=Head(model.head),
            num_slots=machine.max_slots,
            threads=machine.threads,
            about=Sampling(engine=f"hf/{device}", dtype=str(model.head.dtype).removeprefix("torch.")),
        )
        self._names = count()

    @property
    def version(self) -> int:
        """Version of the weights now loaded."""
        return self._worker.version

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return self._model.vocabulary

    @property
    def stats(self) -> Stats:
        """What went through the model so far."""
        return self._worker.stats

    @property
    def bitmaps(self) -> dict[str, bytes]:
        """Packed bitmaps of supports by digest: to be stored with the records and filled in from there."""
        return self._worker.bitmaps

    async def sample(self, request: Request) -> Generation:
        """Continue one context. Calls that are pending together are forwarded together.

        Raises:
            UsageError: an empty context, an id outside the vocabulary, no new tokens allowed, or a transform that the
                sampler does not apply.
            EngineFailure: the model or the constraint failed.
        """
        self._check(request)
        work: Writing[Tensor] = Writing(
            request, vocabulary=self.vocabulary, max_context=self._max_context, decode=self._decode
        )
        self._worker.submit(work)
        return await asyncio.wrap_future(work.future)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Score each request under the weights now loaded, on the sampler's own numerical path."""
        works: list[Scoring[Tensor]] = []
        for request in requests:
            if request.positions.size and int(request.positions.min()) < 1:
                raise UsageError("a score request asks for position 0, which nothing precedes; positions start at 1")
            if request.token_ids.size > self._max_context:
                raise UsageError(
                    f"a score request has {request.token_ids.size} tokens, the engine holds {self._max_context}; "
                    "raise max_context"
                )
            works.append(Scoring(request, context=f"\0score{next(self._names)}"))
        if not works:
            return []
        self._worker.submit(*works)
        return list(await asyncio.gather(*(asyncio.wrap_future(work.future) for work in works)))

    async def load(self, weights: Weights) -> None:
        """Wait for running calls, take the weights, drop what was computed with the old ones."""
        future: Future[None] = Future()
        self._worker.submit(Command(run=lambda: self._take(weights), future=future))
        await asyncio.wrap_future(future)

    def start_from(self, weights: Weights) -> None:
        """Take weights before the first call."""
        self._take(weights)

    def release(self, context: str) -> None:
        """Forget what is kept for a context; unknown names are fine."""
        self._worker.submit(context)

    def close(self) -> None:
        """End the sampler's thread."""
        self._worker.close()

    def _take(self, weights: Weights) -> None:
        parameters = self._model.parameters()
        if weights.is_adapter:
            if self._base is None or self._adapter_scale is None:
                raise UsageError("this sampler was built for full weights and cannot load an adapter")
            merge(parameters, self._base, weights, scale=self._adapter_scale)
        else:
            fill(parameters, weights)
        self._worker.drop()
        self._worker.version = weights.version

    def _check(self, request: Request) -> None:
        where = f"context `{request.context}` turn {request.turn}"
        ids = request.token_ids
        if not ids.size:
            raise UsageError(f"{where}: the context is empty; a model continues at least one token")
        if int(ids.max()) >= self.vocabulary:
            raise UsageError(f"{where}: token id {int(ids.max())} is outside the vocabulary of {self.vocabulary}")
        if request.max_new_tokens < 1:
            raise UsageError(f"{where}: max_new_tokens must be at least 1, found {request.max_new_tokens}")
        if ids.size > self._max_context:
            raise UsageError(f"{where}: {ids.size} tokens, the engine holds {self._max_context}; raise max_context")
        if request.sampling.untrainable:
            raise UsageError(f"{where}: the engine does not apply {', '.join(request.sampling.untrainable)}")
        if request.sampling.stop_strings:
            self._load_tokenizer(where)

    def _load_tokenizer(self, where: str) -> None:
        if self._tokenizer is None:
            path = Path(self._model.folder) / "tokenizer.json"
            if not path.is_file():
                raise UsageError(f"{where}: stop strings need `{path}`, which is missing; use stop_ids")
            self._tokenizer = Tokenizer.from_file(str(path))

    def _decode(self, ids: list[int]) -> str:
        assert self._tokenizer is not None
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text
