"""A running estimate against the number of episodes, with the band that shrinks as one over its root."""

from collections.abc import Sequence
from math import sqrt

from kifu.dashboard.svg import Frame, Series, line_chart, standalone

_POINTS = 240
"""Episodes that are drawn at most: more than the chart has room for."""
_REACH = 0.25
"""Distance from the exact value up to which is drawn."""


def estimate_curve(means: Sequence[float], *, exact: float, title: str) -> str:
    """Estimate of a probability after 1, 2, … episodes, over one and two standard errors around its exact value.

        exact +- k sqrt(exact (1 - exact) / n),   k = 1, 2

    Args:
        means: ``[N]`` the mean after each episode; estimates further than 0.25 from the exact value are left out.
        exact: the value of the protocol that ran.
        title: for screen readers.

    Returns:
        One SVG file that adapts to light and dark.
    """
    count = len(means)
    drawn = sorted({1 + round(at * (count - 1) / max(min(count, _POINTS) - 1, 1)) for at in range(min(count, _POINTS))})
    low, high = max(0.0, exact - _REACH), min(1.0, exact + _REACH)
    errors = [sqrt(exact * (1.0 - exact) / n) for n in drawn]
    bands = [
        Series(
            name=f"{k} standard errors",
            xs=drawn,
            ys=[exact] * len(drawn),
            lows=[max(low, exact - k * error) for error in errors],
            highs=[min(high, exact + k * error) for error in errors],
        )
        for k in (2, 1)
    ]
    found = [float(means[n - 1]) for n in drawn]
    estimate = Series(
        name="estimate",
        xs=drawn,
        ys=[value if low <= value <= high else None for value in found],
        color="var(--point)",
    )
    label = f"estimate, and 1 and 2 standard errors around {exact:.4g}"
    frame = Frame(x_label="episodes", y_label=label, y_low=low, y_high=high)
    return standalone(line_chart([*bands, estimate], frame, title=title))
