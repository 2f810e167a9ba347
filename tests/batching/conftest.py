"""Rows to pack."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kifu.batching import Row
from kifu.records import as_floats, as_ints

MakeRow = Callable[..., Row]


@pytest.fixture(scope="session")
def make_row() -> MakeRow:
    """A row from ids and trained positions; every other field tells which token it belongs to."""

    def made(ids: Sequence[int], positions: Sequence[int], name: str = "a", turn_of: int = 1000) -> Row:
        return Row(
            trajectory=name,
            token_ids=as_ints(ids),
            positions=as_ints(positions),
            behaviour_logprobs=as_floats([-0.01 * at for at in positions]),
            temperatures=as_floats([1.0] * len(positions)),
            supports=(None,) * len(positions),
            advantages=np.array([float(at) for at in positions]),
            weights=np.array([0.5] * len(positions)),
            turns=as_ints([at // turn_of for at in positions]),
        )

    return made


@pytest.fixture(scope="session")
def benchmark_seconds() -> Callable[[Callable[[], object]], float]:
    """Processor seconds of the fastest of three calls."""

    def seconds(work: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            work()
            best = min(best, time.process_time() - start)
        return best

    return seconds
