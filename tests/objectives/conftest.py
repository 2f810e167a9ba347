"""Terms of a small micro-batch, and finite differences."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from kifu.objectives import Terms

BuildTerms = Callable[..., Terms]
Differences = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


def _double(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """One thread; and torch repeats its warnings, so that no test's result depends on which test ran first."""
    threads, always = torch.get_num_threads(), torch.is_warn_always_enabled()
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    yield
    torch.set_num_threads(threads)
    torch.set_warn_always(always)


@pytest.fixture
def build_terms() -> BuildTerms:
    """Terms in float64 from plain lists; turn and sequence default to one of each."""

    def build(
        logp: Tensor,
        *,
        behaviour: Sequence[float],
        advantage: Sequence[float],
        weight: Sequence[float] | None = None,
        turn: Sequence[int] | None = None,
        sequence: Sequence[int] | None = None,
    ) -> Terms:
        count = len(behaviour)
        return Terms(
            logp_N=logp,
            behaviour_logp_N=_double(behaviour),
            advantage_N=_double(advantage),
            weight_N=_double(weight if weight is not None else [1.0] * count),
            turn_N=torch.tensor(turn if turn is not None else [0] * count, dtype=torch.int64),
            sequence_N=torch.tensor(sequence if sequence is not None else [0] * count, dtype=torch.int64),
        )

    return build


@pytest.fixture
def differences() -> Differences:
    """Central differences of a scalar function: the oracle of every gradient."""

    def compute(function: Callable[[Tensor], Tensor], at_N: Tensor) -> Tensor:
        step, found = 1e-6, []
        for n in range(at_N.numel()):
            moved_N = torch.zeros_like(at_N)
            moved_N[n] = step
            found.append((function(at_N + moved_N).item() - function(at_N - moved_N).item()) / (2 * step))
        return torch.tensor(found, dtype=at_N.dtype)

    return compute
