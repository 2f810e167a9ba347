"""Progress towards the gold answer against the papers' numbers."""

from math import exp, log

import numpy as np
import pytest

from kifu.credit.gold import information_gain, log_gap_progress, window_credit
from kifu.errors import ArgumentError

LOGPROBS = [-4.0, -3.0, -3.5, -1.0, -0.5]


@pytest.mark.parametrize(
    ("before", "after", "eps", "printed"),
    [
        (-5.1187, -1.5712, 0.001, 1.1806),
        (-10.6570, -7.1061, 0.001, 0.4052),
        (-5.1187, -1.5712, 0.1, 1.1387),
        (-10.6570, -7.1061, 0.1, 0.4006),
    ],
)
def test_progress_of_the_paper_s_appendix(before: float, after: float, eps: float, printed: float) -> None:
    assert round(float(log_gap_progress([before, after], eps=eps)[0]), 4) == printed


def test_progress_of_the_example_telescopes() -> None:
    found = log_gap_progress(LOGPROBS, eps=0.1)
    np.testing.assert_allclose(found, [0.279585, -0.149532, 1.185624, 0.606136], rtol=0, atol=5e-7)
    assert float(found.sum()) == pytest.approx(log(4.1 / 0.6), abs=1e-12)
    assert round(float(found.sum()), 6) == 1.921813


def test_the_window_of_the_example() -> None:
    found = window_credit(log_gap_progress(LOGPROBS, eps=0.1), window=3, gamma=0.8)
    np.testing.assert_allclose(found, [0.376540, 0.486432, 0.928074, 0.606136], rtol=0, atol=5e-7)


@pytest.mark.parametrize("window", [1, 2, 3, 9])
@pytest.mark.parametrize("gamma", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("fill", [None, 2.0])
def test_the_window_is_the_written_out_mean(window: int, gamma: float, fill: float | None) -> None:
    delta, outcome = [0.3, -0.2, 1.0, 0.5, -0.7], 1.5
    last = len(delta) - 1
    for k, found in enumerate(window_credit(delta, window=window, gamma=gamma, outcome=outcome, fill=fill)):
        h = min(k + window - 1, last)
        above = sum(gamma ** (u - k) * delta[u] for u in range(k, h + 1))
        expected = above / sum(gamma ** (u - k) for u in range(k, h + 1))
        if fill is not None and h == last:
            expected += fill * gamma ** (last + 1 - k) * outcome
        assert found == pytest.approx(expected, abs=1e-12)


def test_information_gain_of_the_printed_example() -> None:
    found = information_gain([-3.0, -1.5, -1.8, -0.4])
    np.testing.assert_allclose(found, [0.173343, -0.057831, 0.505021], rtol=0, atol=5e-7)
    assert float(found.sum()) == pytest.approx(exp(-0.4) - exp(-3.0), abs=1e-12)
    assert round(float(found.sum()), 6) == 0.620533


def test_one_prefix_has_no_transition() -> None:
    assert log_gap_progress([-1.0], eps=0.1).size == information_gain([-1.0]).size == 0
    assert window_credit([], window=3, gamma=0.8).size == 0


def test_what_is_no_log_probability_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"at most 0 nats, found 0\.5"):
        log_gap_progress([-1.0, 0.5], eps=0.1)
    with pytest.raises(ArgumentError, match="finite"):
        information_gain([float("nan"), -1.0])
    with pytest.raises(ArgumentError, match="at least one prefix"):
        information_gain([])
    with pytest.raises(ArgumentError, match="eps must be > 0"):
        log_gap_progress([-1.0], eps=0.0)
    with pytest.raises(ArgumentError, match="window"):
        window_credit([1.0], window=0, gamma=1.0)
