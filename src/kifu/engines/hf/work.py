"""One call in progress: what it still feeds, what it has written, when it ends. No torch.

Axes: ``N`` tokens written, ``S`` candidate ids.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from kifu.engines.hf.choice import Choice, as_support
from kifu.engines.hf.slots import Slot
from kifu.policy import Generation, Request, ScoreRequest, Scores, uniform
from kifu.records import Finish, Ints, Support, as_floats, as_ints

Hidden = TypeVar("Hidden")
Decode = Callable[[list[int]], str]


class Writing(Generic[Hidden]):
    """A `Request` being answered."""

    def __init__(self, request: Request, *, vocabulary: int, max_context: int, decode: Decode) -> None:
        self.request = request
        self.future: Future[Generation] = Future()
        self.token_ids: list[int] = request.token_ids.tolist()
        self.slot: Slot[Hidden] | None = None
        self.hidden: Hidden | None = None
        """State after the last token, once everything was fed."""
        self.finish: Finish | None = None
        self._vocabulary = vocabulary
        self._max_context = max_context
        self._decode = decode
        self._sampled: list[bool] = []
        self._logprobs: list[float] = []
        self._supports: list[Support | None] = []
        self._entropies: list[float] = []
        self._alternatives: list[tuple[tuple[int, float], ...]] = []
        self._asked: tuple[int, Ints | None] | None = None

    @property
    def written(self) -> tuple[int, ...]:
        """``[N]`` tokens of the turn so far."""
        return tuple(self.token_ids[self.request.token_ids.size :])

    @property
    def u(self) -> float:
        """The uniform number of the next token."""
        return uniform(self.request.sampling.stream, turn=self.request.turn, position=len(self._sampled))

    def candidates(self) -> Ints | None:
        """Write whatever is forced, then say what can be sampled next: ids, or None for the whole vocabulary.

        The answer counts unless ``finish`` is set or ``hidden`` is None: then forced tokens must be fed first.
        """
        if self._asked is not None and self._asked[0] == len(self.token_ids):
            return self._asked[1]
        while self.finish is None:
            if len(self._sampled) >= self.request.max_new_tokens:
                self.finish = Finish.LENGTH
            elif len(self.token_ids) >= self._max_context:
                self.finish = Finish.CONTEXT
            else:
                constraint = self.request.constraint
                allowed = None if constraint is None else constraint.allowed(self.written)
                if allowed is None or allowed.size > 1:
                    self._asked = (len(self.token_ids), allowed)
                    return allowed
                if allowed.size == 0:
                    self.finish = Finish.STOP
                else:
                    self._append(int(allowed[0]), sampled=False)
        return None

    def take(self, choice: Choice, bitmaps: dict[str, bytes]) -> None:
        """Write a sampled token; one whose kept set had one member was not sampled by anybody."""
        chosen = choice.kept is None or choice.kept.size > 1
        support, bitmap = as_support(choice.kept, self._vocabulary) if chosen else (None, None)
        if support is not None and bitmap is not None and support.mask is not None:
            bitmaps.setdefault(support.mask, bitmap)
        self._append(choice.token_id, sampled=chosen, logprob=choice.logprob, support=support)
        if chosen:
            self._entropies[-1] = choice.entropy
            self._alternatives[-1] = choice.alternatives

    def generation(self, *, version: int, engine: str, dtype: str) -> Generation:
        """The finished answer."""
        assert self.finish is not None
        sampling = self.request.sampling
        constraint = self.request.constraint
        grammar = sampling.grammar if constraint is None else constraint.digest
        has_support = any(support is not None for support in self._supports)
        entropies = [item for item, is_chosen in zip(self._entropies, self._sampled, strict=True) if is_chosen]
        return Generation(
            token_ids=as_ints(self.written),
            sampled=np.array(self._sampled, dtype=np.bool_),
            logprobs=as_floats(self._logprobs),
            policy_version=version,
            finish=self.finish,
            sampling=replace(sampling, engine=engine, dtype=dtype, grammar=grammar),
            support=tuple(self._supports) if has_support else None,
            entropy=float(np.mean(entropies)) if entropies else None,
            entropies=as_floats(self._entropies),
            alternatives=tuple(self._alternatives) if self.request.alternatives else None,
        )

    def _append(
        self, token: int, *, sampled: bool, logprob: float = float("nan"), support: Support | None = None
    ) -> None:
        self.token_ids.append(token)
        self._sampled.append(sampled)
        self._logprobs.append(logprob if sampled else float("nan"))
        self._supports.append(support)
        self._entropies.append(float("nan"))
        self._alternatives.append(())
        self.hidden = None
        sampling = self.request.sampling
        if token in sampling.stop_ids or self._ends_with_stop_string():
            self.finish = Finish.STOP

    def _ends_with_stop_string(self) -> bool:
        strings = self.request.sampling.stop_strings
        if not strings:
            return False
        tail = list(self.written[-(4 * max(map(len, strings)) + 4) :])
        text = self._decode(tail)
        return any(string in text for string in strings)


class Scoring(Generic[Hidden]):
    """A `ScoreRequest` being answered."""

    def __init__(self, request: ScoreRequest, *, context: str) -> None:
        self.request = request
        self.context = context
        self.future: Future[Scores] = Future()
        last = int(request.positions.max()) if request.positions.size else 0
        self.token_ids: list[int] = request.token_ids[:last].tolist()
        """Tokens that must be fed: all before the last scored one."""
        self.slot: Slot[Hidden] | None = None
        self.rows: list[Hidden] = []
        """Hidden state before each scored token, in order."""

    @property
    def first(self) -> int:
        """Tokens whose hidden states are not needed."""
        return int(self.request.positions.min()) - 1 if self.request.positions.size else 0

    def wanted(self, start: int, stop: int) -> list[int]:
        """Offsets into fed positions ``start`` to ``stop`` whose hidden state is needed."""
        before = self.request.positions.astype(np.int64) - 1
        return [int(at) for at in before[(before >= start) & (before < stop)] - start]
