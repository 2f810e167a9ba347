"""An independent GRU in numpy, and builders of requests and batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kifu.batching import Occurrences, PackedBatch, Tree, ValueTargets
from kifu.engines import build_engine
from kifu.policy import Constraint, Engine, EngineSpec, Machine, Request
from kifu.records import Ints, Sampling, Support, as_floats, as_ints

VOCABULARY = 11
Array = npt.NDArray[np.float64]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class NumpyPolicy:
    """The model written out from its formulas, float64, token by token.

    r = s(W_r x + b_r + U_r h + c_r), z likewise, n = tanh(W_n x + b_n + r (U_n h + c_n)), h' = (1 - z) n + z h
    """

    def __init__(self, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        self._t = {name: array.astype(np.float64) for name, array in tensors.items()}

    def _state(self, ids: Sequence[int]) -> Array:
        t = self._t
        h: Array = np.zeros(t["embedding"].shape[1])
        for token in ids:
            x = t["embedding"][token]
            if "layer.weight" in t:
                h = np.tanh(t["layer.weight"] @ x + t["layer.bias"])
                continue
            i_r, i_z, i_n = np.split(t["gru.weight_ih_l0"] @ x + t["gru.bias_ih_l0"], 3)
            h_r, h_z, h_n = np.split(t["gru.weight_hh_l0"] @ h + t["gru.bias_hh_l0"], 3)
            z = _sigmoid(i_z + h_z)
            h = (1 - z) * np.tanh(i_n + _sigmoid(i_r + h_r) * h_n) + z * h
        return h

    def logits(self, ids: Sequence[int]) -> Array:
        """``[V]`` after the whole context."""
        found: Array = self._t["policy.weight"] @ self._state(ids) + self._t["policy.bias"]
        return found

    def value(self, ids: Sequence[int]) -> float:
        """Of the whole context."""
        return float((self._t["value.weight"] @ self._state(ids) + self._t["value.bias"])[0])

    def distribution(self, ids: Sequence[int], temperature: float, kept: Sequence[int] | None = None) -> Array:
        """``[V]`` probabilities, 0 outside ``kept``."""
        logits = self.logits(ids) / temperature
        mask = np.ones(logits.size, dtype=bool) if kept is None else np.isin(np.arange(logits.size), kept)
        weights = np.where(mask, np.exp(logits - logits[mask].max()), 0.0)
        found: Array = weights / weights.sum()
        return found


@dataclass(frozen=True)
class Words:
    """A constraint: one token out of ``first``, then ``then`` in order, then the turn is complete."""

    first: tuple[int, ...]
    then: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """Names the grammar."""
        return f"words{self.first}{self.then}"

    def allowed(self, prefix: tuple[int, ...]) -> Ints | None:
        """Of the next token."""
        if not prefix:
            return as_ints(self.first)
        rest = self.then[len(prefix) - 1 :]
        return as_ints(rest[:1])


Make = Callable[..., Engine]


@pytest.fixture
def make() -> Make:
    """Bring an engine up: ``make(kind=..., dtype=..., seed=..., max_slots=...)``; its policy is far from uniform."""

    def build(
        *, seed: int = 3, max_slots: int = 128, max_context: int = 64, scale: float = 60.0, **options: str | int
    ) -> Engine:
        spec = EngineSpec(
            seed=seed,
            vocabulary=VOCABULARY,
            max_context=max_context,
            machine=Machine(max_slots=max_slots),
            options={"hidden": 16, **options},
        )
        engine = build_engine("recurrent", spec)
        state = engine.trainer.state()
        # Initial policies are nearly uniform; stretched heads make every probability count.
        state["weights"] = {n: a * scale if n.startswith("policy") else a for n, a in state["weights"].items()}
        engine.trainer.load_state(state)
        weights = engine.trainer.publish()
        return build_engine("recurrent", replace(spec, initial=weights))

    return build


def request(
    ids: Sequence[int],
    *,
    stream: str = "s",
    context: str = "",
    turn: int = 0,
    limit: int = 4,
    sampling: Sampling | None = None,
    constraint: Constraint | None = None,
) -> Request:
    """One call with default sampling unless given."""
    return Request(
        context=context or stream,
        token_ids=as_ints(ids),
        sampling=replace(sampling or Sampling(), stream=stream),
        turn=turn,
        max_new_tokens=limit,
        constraint=constraint,
    )


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row for a batch: ids, trained positions, and what belongs to them."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    advantage: float = 1.0
    behaviour: float = -1.0
    temperature: float = 1.0
    support: Support | None = None
    value_target: float | None = None


def pack(rows: Sequence[Line]) -> PackedBatch:
    """Chains, one per row; the state before a row's first trained token is valued."""
    starts = np.cumsum([0] + [len(row.ids) for row in rows])
    flat = [
        (int(start), at, index, row)
        for index, (start, row) in enumerate(zip(starts, rows, strict=False))
        for at in row.positions
    ]
    valued = [
        (int(start) + row.positions[0] - 1, row.value_target)
        for start, row in zip(starts, rows, strict=False)
        if row.value_target is not None
    ]
    return PackedBatch(
        trees=tuple(
            Tree(
                token_ids=as_ints(row.ids),
                depths=as_ints(range(len(row.ids))),
                parents=np.arange(-1, len(row.ids) - 1, dtype=np.int32),
            )
            for row in rows
        ),
        occurrences=Occurrences(
            nodes=as_ints([start + at - 1 for start, at, _, _ in flat]),
            token_ids=as_ints([row.ids[at] for _, at, _, row in flat]),
            behaviour_logprobs=as_floats([row.behaviour for *_, row in flat]),
            temperatures=as_floats([row.temperature for *_, row in flat]),
            supports=tuple(row.support for *_, row in flat),
            advantages=np.array([row.advantage for *_, row in flat]),
            weights=np.array([0.25] * len(flat)),
            turns=as_ints([index for _, _, index, _ in flat]),
            sequences=as_ints([index for _, _, index, _ in flat]),
        ),
        values=ValueTargets(
            nodes=as_ints([node for node, _ in valued]),
            targets=np.array([target for _, target in valued]),
            old_values=np.zeros(len(valued)),
            weights=np.full(len(valued), 0.5),
        )
        if valued
        else None,
        trajectories=("train/first", "train/second"),
    )


@pytest.fixture
def numpy_policy() -> type[NumpyPolicy]:
    """The independent model."""
    return NumpyPolicy


@pytest.fixture
def words() -> type[Words]:
    """The constraint."""
    return Words


@pytest.fixture
def ask() -> Callable[..., Request]:
    """Build a request."""
    return request


@pytest.fixture
def row() -> type[Line]:
    """A row of a batch."""
    return Line


@pytest.fixture
def packed() -> Callable[[Sequence[Line]], PackedBatch]:
    """Build a batch."""
    return pack
