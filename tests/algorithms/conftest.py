"""Episodes made from numbers."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kifu.credit import Episode


@pytest.fixture
def make_episode() -> Callable[..., Episode]:
    """An episode from rewards and, where given, values, durations and V(h_T) of a cut."""

    def make(
        rewards: Sequence[float],
        *,
        values: Sequence[float] | None = None,
        cut_worth: float | None = None,
        durations: Sequence[float] | None = None,
    ) -> Episode:
        return Episode(
            rewards_K=np.array(rewards, dtype=np.float64),
            terminated=cut_worth is None,
            values_K=None if values is None else np.array(values, dtype=np.float64),
            final_value=cut_worth,
            durations_K=None if durations is None else np.array(durations, dtype=np.float64),
        )

    return make
