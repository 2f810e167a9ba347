"""Charts are well-formed, keep inside their frame and put gaps where values are absent."""

import re
from xml.etree import ElementTree

import pytest

from kifu.dashboard.svg import Frame, Series, bar_chart, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def points(element: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = [pair.split(",") for pair in element.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_a_line_runs_from_edge_to_edge_and_up_means_more() -> None:
    frame = Frame(width=200, height=100)
    chart = ElementTree.fromstring(line_chart([Series(name="a", xs=[0, 5, 10], ys=[0.0, 0.5, 1.0])], frame))
    (line,) = chart.findall(f"{SVG}polyline")
    (x0, y0), (x1, y1), (x2, y2) = points(line)
    assert 0 < x0 < x1 < x2 < 200
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert 100 > y0 > y1 > y2 > 0
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.11)


def test_an_absent_value_is_a_gap() -> None:
    chart = ElementTree.fromstring(line_chart([Series(name="a", xs=[0, 1, 2, 3, 4], ys=[0, 0.1, None, 0.3, 0.4])]))
    assert [len(points(line)) for line in chart.findall(f"{SVG}polyline")] == [2, 2]


def test_whiskers_span_their_interval() -> None:
    series = Series(name="a", xs=[0, 1], ys=[0.5, None], lows=[0.25, None], highs=[0.75, None], dots=True)
    chart = ElementTree.fromstring(line_chart([series], Frame(height=100)))
    (circle,) = chart.findall(f"{SVG}circle")
    whisker = next(item for item in chart.findall(f"{SVG}line") if item.attrib["stroke"] == "var(--line)")
    middle = (float(whisker.attrib["y1"]) + float(whisker.attrib["y2"])) / 2
    assert float(circle.attrib["cy"]) == pytest.approx(middle, abs=0.11)


@pytest.mark.parametrize("series", [[], [Series(name="a", xs=[3], ys=[0.5])], [Series(name="a", xs=[], ys=[])]])
def test_little_data_still_gives_a_chart(series: list[Series]) -> None:
    assert ElementTree.fromstring(line_chart(series)).tag == f"{SVG}svg"


def test_bars_are_in_proportion_and_labels_escaped() -> None:
    text = bar_chart([("<a&b>", 1.0), ("half", 0.5)])
    chart = ElementTree.fromstring(text)
    first, second = (float(bar.attrib["width"]) for bar in chart.findall(f"{SVG}rect"))
    assert second == pytest.approx(first / 2, abs=0.1)
    assert next(item.text for item in chart.findall(f"{SVG}text")) == "<a&b>"
    assert re.search("<a", text) is None


@pytest.mark.parametrize(
    ("last", "ticks"),
    [(1, [0, 1]), (12, [0, 2, 4, 6, 8, 10, 12]), (29, [0, 5, 10, 15, 20, 25]), (100, [0, 20, 40, 60, 80, 100])],
)
def test_ticks_are_whole_steps(last: int, ticks: list[int]) -> None:
    chart = ElementTree.fromstring(line_chart([Series(name="a", xs=[0, last], ys=[0.0, 1.0])]))
    found = [item.text for item in chart.findall(f"{SVG}text") if item.attrib.get("text-anchor") == "middle"]
    assert found == [str(tick) for tick in ticks]
