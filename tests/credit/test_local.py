"""Gated future credit against TARA's printed table and loops."""

import numpy as np
import pytest

from kifu.credit.local import gated_future

REWARDS = [[1, 1, 1], [1, 0, 1], [0, 1, 0], [1, 1, 0]]


def test_gated_futures_as_printed() -> None:
    found = [gated_future(row, gamma=0.5).tolist() for row in REWARDS]
    assert found == [[1.5, 1.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
def test_the_future_is_the_written_out_sum(gated: bool, gamma: float) -> None:
    r = [1.0, -0.5, 0.0, 2.0, 1.0]
    for k, found in enumerate(gated_future(r, gamma=gamma, gated=gated)):
        total = sum(gamma**j * r[k + 1 + j] for j in range(len(r) - k - 1))
        assert found == pytest.approx(r[k] * total if gated else total, abs=1e-12)


def test_no_turn_and_a_last_turn_have_no_future() -> None:
    assert gated_future([], gamma=0.5).size == 0
    np.testing.assert_array_equal(gated_future([1.0], gamma=0.5), [0.0])
