"""Small charts as SVG text: lines with bands, bars. Every text in them is escaped."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

from kifu.dashboard.text import printable

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 16, 30
_STYLE = (
    "<style>:root{--line:#2a6f97;--point:#d1495b;--grid:#d9dde3;color:#22262b}"
    "@media(prefers-color-scheme:dark){:root{--line:#7cc6ef;--point:#ff8a94;--grid:#3a414a}text{fill:#d7dce2}}"
    "text{font:11px system-ui,sans-serif}</style>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    """An absent value is a gap."""
    lows: Sequence[float | None] = ()
    highs: Sequence[float | None] = ()
    color: str = "var(--line)"
    dots: bool = False
    """Points with whiskers instead of a line with a band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Size and axes of a chart."""

    width: int = 640
    height: int = 220
    x_label: str = "step"
    y_label: str = ""
    y_low: float = 0.0
    y_high: float = 1.0


class _Scale:
    def __init__(self, frame: Frame, series: Sequence[Series]) -> None:
        xs = [x for item in series for x in item.xs]
        self._frame = frame
        self.x_low, self.x_high = (min(xs), max(xs)) if xs else (0.0, 1.0)
        if self.x_high <= self.x_low:
            self.x_high = self.x_low + 1.0

    def x(self, value: float) -> float:
        room = self._frame.width - _LEFT - _RIGHT
        return _LEFT + room * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        frame = self._frame
        room = frame.height - _TOP - _BOTTOM
        return _TOP + room * (1.0 - (value - frame.y_low) / ((frame.y_high - frame.y_low) or 1.0))


def line_chart(series: Sequence[Series], frame: Frame | None = None, *, title: str = "") -> str:
    """Lines with bands, or points with whiskers, over one axis.

    Args:
        series: what to draw; an empty list draws the axes alone.
        frame: size and axes.
        title: for screen readers.
    """
    frame = frame or Frame()
    scale = _Scale(frame, series)
    body = [_axes(frame, scale)]
    for item in series:
        body.append(_dots(item, scale) if item.dots else _line(item, scale))
    return _svg(frame, title, body)


def bar_chart(values: Sequence[tuple[str, float]], *, width: int = 640, title: str = "", unit: str = "") -> str:
    """Horizontal bars, one a label, with their figures."""
    row, left = 20, 150
    largest = max((value for _, value in values), default=0.0) or 1.0
    body = []
    for index, (label, value) in enumerate(values):
        y = 4 + index * row
        length = (width - left - 90) * max(0.0, value) / largest
        body.append(
            f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{shown(label)}</text>'
            f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{row - 6}" rx="2" fill="var(--line)"/>'
            f'<text x="{left + length + 5:.1f}" y="{y + 12}">{value:.3g}{shown(unit)}</text>'
        )
    return _svg(Frame(width=width, height=8 + row * len(values)), title, body)


def shown(text: str) -> str:
    """Text for HTML and SVG, in attributes too: escaped, control characters written out."""
    return escape(printable(text), quote=True)


def standalone(svg: str) -> str:
    """A chart as a file of its own, with colours for light and dark."""
    head, mark, rest = svg.partition(">")
    return f"{head}{mark}{_STYLE}{rest}\n"


def _svg(frame: Frame, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'width="{frame.width}" height="{frame.height}"><title>{shown(title)}</title>{"".join(body)}</svg>'
    )


def _axes(frame: Frame, scale: _Scale) -> str:
    parts = []
    for at in range(5):
        value = frame.y_low + (frame.y_high - frame.y_low) * at / 4
        y = scale.y(value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{frame.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--grid)"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    apart = _apart((scale.x_high - scale.x_low) / 6)
    for at in range(ceil(scale.x_low / apart), floor(scale.x_high / apart) + 1):
        value = at * apart
        parts.append(f'<text x="{scale.x(value):.1f}" y="{frame.height - 14}" text-anchor="middle">{value:.4g}</text>')
    parts.append(
        f'<text x="{frame.width - _RIGHT}" y="{frame.height - 2}" text-anchor="end" class="label">'
        f"{shown(frame.x_label)}</text>"
    )
    parts.append(f'<text x="{_LEFT + 4}" y="{_TOP - 2}" class="label">{shown(frame.y_label)}</text>')
    return "".join(parts)


def _apart(least: float) -> int:
    """Distance of ticks: whole, and from 10 on 1, 2 or 5 times a power of ten."""
    whole = max(1, ceil(least))
    if whole < 10:
        return whole
    power = int(10 ** floor(log10(whole)))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= whole)


def _line(item: Series, scale: _Scale) -> str:
    parts = []
    if item.lows and item.highs:
        rows = [
            (x, low, high)
            for x, low, high in zip(item.xs, item.lows, item.highs, strict=True)
            if low is not None and high is not None
        ]
        there = [f"{scale.x(x):.1f},{scale.y(high):.1f}" for x, _, high in rows]
        back = [f"{scale.x(x):.1f},{scale.y(low):.1f}" for x, low, _ in reversed(rows)]
        parts.append(f'<polygon points="{" ".join(there + back)}" fill="{item.color}" opacity="0.18"/>')
    for run in _runs(item):
        points = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in run)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{item.color}" stroke-width="1.6"/>')
    return "".join(parts)


def _dots(item: Series, scale: _Scale) -> str:
    parts = []
    lows = item.lows or [None] * len(item.xs)
    highs = item.highs or [None] * len(item.xs)
    for x, y, low, high in zip(item.xs, item.ys, lows, highs, strict=True):
        if y is None or not isfinite(y):
            continue
        if low is not None and high is not None:
            parts.append(
                f'<line x1="{scale.x(x):.1f}" x2="{scale.x(x):.1f}" y1="{scale.y(low):.1f}" y2="{scale.y(high):.1f}" '
                f'stroke="{item.color}" stroke-width="1.6"/>'
            )
        parts.append(f'<circle cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3.6" fill="{item.color}"/>')
    return "".join(parts)


def _runs(item: Series) -> list[list[tuple[float, float]]]:
    """Stretches without a gap."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(item.xs, item.ys, strict=True):
        if y is None or not isfinite(y):
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]
