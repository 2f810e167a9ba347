"""One running call: what it wrote so far and how far its context is computed."""

import asyncio
from dataclasses import dataclass, field, replace

import numpy as np

from kifu.engines.recurrent.decode import choices
from kifu.engines.recurrent.prefixes import Prefix, PrefixTree
from kifu.policy import Generation, Request, uniform
from kifu.records import Finish, Ints, Support, as_floats, as_ints


@dataclass(kw_only=True, eq=False)
class Call:
    """Advances by sampling whenever the state after its last token is known."""

    request: Request
    done: asyncio.Future[Generation]
    path: list[Prefix]
    """Every prefix of the context, the written tokens included except the last one."""
    max_context: int
    lost: int = 0
    """Positions that had been computed for this context before it was evicted."""
    _fed: int = 0
    _asked: int = -1
    """Number of written tokens for which `_allowed` was asked."""
    _allowed: Ints | None = None
    _value: float | None = None
    _ids: list[int] = field(default_factory=list)
    _sampled: list[bool] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)
    _supports: list[Support | None] = field(default_factory=list)
    _entropies: list[float] = field(default_factory=list)

    def advance(self, tree: PrefixTree) -> Prefix | Finish:
        """Sample as far as states are known: the prefix to feed next, or why the turn is over."""
        while True:
            finish = self._over()
            if finish is not None:
                return finish
            tree.extend(self.path, self._ids[len(self.path) - self.request.token_ids.size :])
            prefix = self._next_to_feed()
            if prefix is not None:
                return prefix
            self._write(self.path[-1])

    def _over(self) -> Finish | None:
        """Why nothing more is written; asked before the last written token is fed."""
        request, written = self.request, len(self._ids)
        if written and self._ids[-1] in request.sampling.stop_ids:
            return Finish.STOP
        if request.constraint is not None and self._asked != written:
            self._allowed, self._asked = request.constraint.allowed(tuple(self._ids)), written
        if self._allowed is not None and not self._allowed.size:
            return Finish.STOP
        if written >= request.max_new_tokens:
            return Finish.LENGTH
        if request.token_ids.size + written >= self.max_context:
            return Finish.CONTEXT
        return None

    def _next_to_feed(self) -> Prefix | None:
        while self._fed < len(self.path):
            if self.path[self._fed].state is None:
                return self.path[self._fed]
            self._fed += 1
        return None

    def _write(self, prefix: Prefix) -> None:
        sampling, written = self.request.sampling, len(self._ids)
        if self._value is None:
            self._value = prefix.value
        found = choices(prefix, sampling, self._allowed)
        is_greedy = sampling.temperature is None
        at = found.pick(None if is_greedy else uniform(sampling.stream, turn=self.request.turn, position=written))
        is_chosen = found.ids.size > 1
        self._ids.append(int(found.ids[at]))
        self._sampled.append(is_chosen)
        self._logprobs.append(float(found.logprobs[at]) if is_chosen else float("nan"))
        self._supports.append(found.support if is_chosen else None)
        self._entropies.append(found.entropy if is_chosen else float("nan"))

    def generation(self, finish: Finish, *, version: int, dtype: str) -> Generation:
        """The answer."""
        sampling, constraint = self.request.sampling, self.request.constraint
        grammar = sampling.grammar if constraint is None else constraint.digest
        entropies = [item for item, is_chosen in zip(self._entropies, self._sampled, strict=True) if is_chosen]
        return Generation(
            token_ids=as_ints(self._ids),
            sampled=np.array(self._sampled, dtype=np.bool_),
            logprobs=as_floats(self._logprobs),
            policy_version=version,
            finish=finish,
            sampling=replace(sampling, grammar=grammar, engine="recurrent/cpu", dtype=dtype),
            support=tuple(self._supports) if any(item is not None for item in self._supports) else None,
            value=self._value,
            entropy=float(np.mean(entropies)) if entropies else None,
            entropies=as_floats(self._entropies),
        )
