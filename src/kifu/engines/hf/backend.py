"""What computes hidden states for the sampler: with kept keys and values, or by recomputing whole contexts.

Axes: ``R`` token rows fed in one call, ``D`` hidden size.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kifu.engines.hf.attention import NAME, Feed, Layout, UnsupportedAttentionError
from kifu.engines.hf.kept import Kept
from kifu.engines.hf.loading import CausalModel
from kifu.engines.hf.rows import ALL, SIZES, Rows, measure_rows, products_of

MOVING_ROPE = frozenset({"longrope", "dynamic"})
"""Rotations that follow from the longest context of a forward, so that no context may share one."""
AGREEMENT = {torch.float32: 1e-3, torch.bfloat16: 1e-1}
"""Largest relative distance between hidden states from kept keys and from the model's own attention."""


class Backend(Protocol):
    """Hidden states of fed tokens; remembers what each slot was fed."""

    name: str
    reproducible: bool
    """Whether states were the same bits alone and among others when it was chosen."""

    @property
    def rows(self) -> Rows | None:
        """How many token rows a forward may have; None where a forward holds one whole context."""
        ...

    def forward(self, feeds: Sequence[Feed]) -> Tensor:
        """``[R, D]`` hidden states, feed after feed."""
        ...

    def copy(self, source: int, targets: list[int], *, start: int, stop: int) -> None:
        """Let ``targets``, equal to ``source`` before ``start``, be equal to it up to ``stop``."""
        ...


class KeptBackend:
    """Each token goes through the model once; its keys and values stay."""

    name = "kept keys and values"

    def __init__(self, model: CausalModel, kept: Kept) -> None:
        self._model = model
        self._kept = kept
        self.rows: Rows = ALL
        self.reproducible = False

    def forward(self, feeds: Sequence[Feed]) -> Tensor:
        """``[R, D]`` hidden states, feed after feed."""
        return torch.cat([self._forward(part) for part in _parts(feeds, self.rows.most)])

    def _forward(self, feeds: Sequence[Feed]) -> Tensor:
        layout = Layout(feeds, self._kept, self.rows)
        with torch.inference_mode():
            hidden = self._model.hidden(layout.input_ids, position_ids=layout.position_ids, layout=layout)
        return hidden[0, : layout.num_rows]

    def copy(self, source: int, targets: list[int], *, start: int, stop: int) -> None:
        """Let ``targets``, equal to ``source`` before ``start``, be equal to it up to ``stop``."""
        self._kept.copy(source, targets, start=start, stop=stop)


class RecomputingBackend:
    """For models whose attention is not understood: each context alone, from its first token, every time."""

    name = "whole contexts recomputed"
    rows: Rows | None = None

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self.reproducible = False
        self._fed: dict[int, tuple[int, ...]] = {}

    def forward(self, feeds: Sequence[Feed]) -> Tensor:
        """``[R, D]`` hidden states, feed after feed."""
        found = []
        for feed in feeds:
            whole = self._fed.get(feed.slot, ())[: feed.start] + feed.token_ids
            self._fed[feed.slot] = whole
            with torch.inference_mode():
                hidden = self._model.hidden(torch.tensor(whole, device=self._model.device)[None])
            found.append(hidden[0, feed.start :])
        return torch.cat(found)

    def copy(self, source: int, targets: list[int], *, start: int, stop: int) -> None:
        """Let ``targets``, equal to ``source`` before ``start``, be equal to it up to ``stop``."""
        for target in targets:
            self._fed[target] = self._fed[source][:stop]


def choose_backend(model: CausalModel, *, num_slots: int, capacity: int) -> Backend:
    """Keep keys and values where that gives the hidden states of the model's own attention, else recompute."""
    backend = _exact_backend(model, num_slots=num_slots, capacity=capacity)
    backend.reproducible = is_reproducible(backend, model.vocabulary, num_slots=num_slots, capacity=capacity)
    if not backend.reproducible and isinstance(backend, KeptBackend):
        backend.rows = ALL  # padding and cutting would cost time for nothing
    return backend


def _exact_backend(model: CausalModel, *, num_slots: int, capacity: int) -> Backend:
    original = model.whole.config._attn_implementation
    if _moving_rope(model):
        return RecomputingBackend(model)
    ids = _probe(model.vocabulary, min(40, capacity))
    with torch.inference_mode():
        wanted = model.hidden(torch.tensor(ids, device=model.device)[None])[0].float()
    kept = Kept(
        num_slots=num_slots, capacity=capacity, dtype=model.head.dtype, device=model.device, share=_share(model)
    )
    backend = KeptBackend(model, kept)
    try:
        model.whole.set_attn_implementation(NAME)
        cut = len(ids) * 3 // 4
        parts = [(0, ids[:cut]), (cut, ids[cut:])]
        states = [backend.forward([Feed(slot=0, start=start, token_ids=part)]) for start, part in parts if part]
    except (UnsupportedAttentionError, ValueError, TypeError, AttributeError, RuntimeError):
        model.whole.set_attn_implementation(original)
        return RecomputingBackend(model)
    found = torch.cat(states).float()
    if bool((found - wanted).norm() <= AGREEMENT[model.head.dtype] * wanted.norm()):
        backend.rows = measure_rows(products_of(model.whole, leave=[model.head]), SIZES)
        return backend
    model.whole.set_attn_implementation(original)
    return RecomputingBackend(model)


def _parts(feeds: Sequence[Feed], most: int) -> Iterator[list[Feed]]:
    """The feeds in their order, cut into forwards of at most so many rows."""
    part, room = list[Feed](), most
    for feed in feeds:
        done = 0
        while done < len(feed.token_ids):
            taken = feed.token_ids[done : done + room]
            part.append(Feed(slot=feed.slot, start=feed.start + done, token_ids=taken))
            done, room = done + len(taken), room - len(taken)
            if room == 0:
                yield part
                part, room = [], most
    if part:
        yield part


def _moving_rope(model: CausalModel) -> bool:
    for name in ("rope_parameters", "rope_scaling"):
        found = getattr(model.whole.config, name, None)
        if isinstance(found, dict):
            tables = [found, *(each for each in found.values() if isinstance(each, dict))]
            if any({table.get("rope_type"), table.get("type")} & MOVING_ROPE for table in tables):
                return True
    return False


def _share(model: CausalModel) -> int:
    """Query heads per key-value head; 1 where the configuration does not say."""
    heads, groups = (getattr(model.whole.config, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    return heads // groups if isinstance(heads, int) and isinstance(groups, int) and groups > 0 else 1


def is_reproducible(backend: Backend, vocabulary: int, *, num_slots: int, capacity: int) -> bool:
    """Whether a context's hidden states are bit for bit the same alone, in pieces, among others, in another slot."""
    ids = _probe(vocabulary, min(45, capacity))
    alone = backend.forward([Feed(slot=0, start=0, token_ids=ids)])
    found, start = [], 0
    for step, length in enumerate((20, 1, 1, 5, 18)):
        piece = ids[start : start + length]
        if not piece:
            break
        others: list[Feed] = []
        if num_slots >= 4:
            others.append(Feed(slot=1, start=0, token_ids=_probe(vocabulary, min(6 + 11 * step, capacity))))
            many = _probe(vocabulary, min(200, capacity))
            others.append(Feed(slot=3, start=0, token_ids=many[:1] if step % 2 else many))
        found.append(
            backend.forward([Feed(slot=min(2, num_slots - 1), start=start, token_ids=piece), *others])[: len(piece)]
        )
        start += len(piece)
    return torch.equal(torch.cat(found), alone)


def _probe(vocabulary: int, count: int) -> tuple[int, ...]:
    generator = np.random.Generator(np.random.PCG64(vocabulary))
    return tuple(int(token) for token in generator.integers(0, vocabulary, count))
