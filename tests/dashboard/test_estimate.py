"""The plot of an estimate: its points are the running means, its bands shrink as one over the root of n."""

from math import sqrt
from xml.etree import ElementTree

import pytest

from kifu.dashboard import estimate_curve

SVG = "{http://www.w3.org/2000/svg}"
EXACT = 0.4
MEANS = [0.0, 0.5, 1 / 3, 0.5, 0.4, 0.5, 3 / 7, 0.375]


def parts() -> tuple[list[list[tuple[float, float]]], list[list[tuple[float, float]]]]:
    """Points of every line and of every band, read back from the file into values: ticks give the scale."""
    chart = ElementTree.fromstring(estimate_curve(MEANS, exact=EXACT, title="a <plot>"))
    heights = {
        float(item.text or "nan"): float(item.attrib["y"]) - 4
        for item in chart.findall(f"{SVG}text")
        if item.attrib.get("text-anchor") == "end" and "class" not in item.attrib
    }
    low, high = min(heights), max(heights)
    per_pixel = (high - low) / (heights[low] - heights[high])
    found = []
    for tag in ("polyline", "polygon"):
        pairs = [[pair.split(",") for pair in item.attrib["points"].split()] for item in chart.findall(f"{SVG}{tag}")]
        found.append([[(float(x), low + (heights[low] - float(y)) * per_pixel) for x, y in line] for line in pairs])
    return found[0], found[1]


def test_the_line_is_the_running_mean_where_it_is_near_the_exact_value() -> None:
    """The first estimate, 0, is further than 0.25 from 0.4 and left out."""
    *flat, line = parts()[0]
    assert [y for _, y in line] == pytest.approx(MEANS[1:], abs=0.002)
    assert [y for straight in flat for _, y in straight] == pytest.approx([EXACT] * 16, abs=0.002)


def test_the_bands_are_one_and_two_standard_errors_wide() -> None:
    wide, narrow = parts()[1]
    for factor, band in ((2, wide), (1, narrow)):
        errors = [factor * sqrt(EXACT * (1 - EXACT) / n) for n in range(1, 9)]
        assert [y for _, y in band[:8]] == pytest.approx([min(EXACT + 0.25, EXACT + e) for e in errors], abs=0.002)
        assert [y for _, y in band[8:][::-1]] == pytest.approx(
            [max(EXACT - 0.25, EXACT - e) for e in errors], abs=0.002
        )


def test_long_estimates_keep_their_ends_and_few_points() -> None:
    means = [0.5] * 100_000
    chart = ElementTree.fromstring(estimate_curve(means, exact=0.5, title="long"))
    line = chart.findall(f"{SVG}polyline")[-1].attrib["points"].split()
    assert 200 <= len(line) <= 400
    ticks = [item for item in chart.findall(f"{SVG}text") if item.attrib.get("text-anchor") == "middle"]
    assert [item.text for item in ticks] == ["2e+04", "4e+04", "6e+04", "8e+04", "1e+05"]
    assert float(line[-1].split(",")[0]) == pytest.approx(float(ticks[-1].attrib["x"]), abs=0.11)
