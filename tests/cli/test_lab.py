"""`kifu lab`: the shapes others rely on, with golden numbers and formulas written out here."""

import json
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import Result

Kifu = Callable[..., Result]
DOCS = Path(__file__).parents[2] / "docs"


def test_the_corridor_gives_its_golden_estimate_and_exact_value(kifu: Kifu) -> None:
    found = json.loads(kifu("lab", "corridor", "--episodes", 1000, "--seed", 7, "--max-steps", 20, "--json").stdout)
    assert found["estimate"] == 0.494
    assert found["exact"] == 1023 / 2048
    assert found["standard_error"] == pytest.approx((0.494 * 0.506 / 1000) ** 0.5)


@pytest.mark.parametrize(("temperature", "entropy"), [(0.5, 0.455429), (1.0, 0.947537), (2.0, 1.245050)])
def test_softmax_gives_probabilities_and_entropy(kifu: Kifu, temperature: float, entropy: float) -> None:
    found = json.loads(kifu("lab", "softmax", "--logits=2,1,0,-1", "--temperature", temperature, "--json").stdout)
    weights = [exp(z / temperature) for z in (2, 1, 0, -1)]
    assert found["probabilities"] == pytest.approx([weight / sum(weights) for weight in weights])
    assert found["entropy"] == pytest.approx(entropy, abs=5e-7)
    assert found["entropy"] == pytest.approx(-sum(p * log(p) for p in found["probabilities"]))


def test_returns_follow_their_recursion(kifu: Kifu) -> None:
    found = json.loads(kifu("lab", "return", "--rewards", "1,0,0,10", "--gamma", 0.9, "--json").stdout)
    assert found["returns"] == pytest.approx([8.29, 8.1, 9.0, 10.0])


def test_groups_are_informative_as_often_as_the_formula_says(kifu: Kifu) -> None:
    found = json.loads(kifu("lab", "groups", "--p", 0.01, "--size", 8, "--json").stdout)
    degenerate = 0.01**8 + 0.99**8
    assert found["degenerate"] == pytest.approx(degenerate)
    assert found["informative"] == pytest.approx(1 - degenerate)
    assert found["expected_groups"] == pytest.approx(1 / (1 - degenerate))


def test_the_corridor_is_drawn_and_the_page_shows_what_the_command_draws(kifu: Kifu, tmp_path: Path) -> None:
    found = kifu("lab", "corridor", "--plot", tmp_path / "corridor.svg", "--json")
    assert json.loads(found.stdout)["plot"] == str(tmp_path / "corridor.svg")
    drawn = (tmp_path / "corridor.svg").read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert drawn == (DOCS / "images" / "corridor.svg").read_text()
    assert "images/corridor.svg" in (DOCS / "lab.md").read_text()


def test_a_plot_that_cannot_be_written_is_a_storage_error(kifu: Kifu, tmp_path: Path) -> None:
    found = kifu("lab", "corridor", "--plot", tmp_path / "nowhere" / "corridor.svg")
    assert found.exit_code == 4
    assert "corridor.svg: No such file or directory" in found.stderr


@pytest.mark.parametrize("p", [0, 1])
def test_groups_that_never_compare_say_never(kifu: Kifu, p: int) -> None:
    arguments = ("lab", "groups", "--p", p, "--size", 8)
    shown = kifu(*arguments).stdout
    assert ("never" in shown, "None" in shown) == (True, False)
    assert json.loads(kifu(*arguments, "--json").stdout)["expected_groups"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["softmax", "--logits", "2,x"], "found '2,x'"),
        (["softmax", "--logits", "1,2", "--temperature", "0"], "temperature"),
        (["return", "--rewards", "1", "--gamma", "1.5"], "gamma"),
        (["return", "--rewards=1e308,1e308", "--gamma", "1"], "--rewards: the result is beyond what a float can hold"),
        (["groups", "--p", "2", "--size", "8"], "p must lie in [0, 1]"),
        (["groups", "--p", "1e-320", "--size", "8"], "--p: found 1e-320, expected 0 or at least 1e-300"),
        (
            ["groups", "--p", "0.5", "--size", "1" + "0" * 400],
            "Invalid value for '--size'",
        ),
        (["corridor", "--episodes", "0"], "at least 1 episode"),
        (["corridor", "--episodes", "1000000000"], "Invalid value for '--episodes'"),
        (["corridor", "--max-steps", "1" + "0" * 31], "Invalid value for '--max-steps'"),
    ],
)
def test_numbers_outside_the_domain_are_refused(kifu: Kifu, arguments: list[str], says: str) -> None:
    found = kifu("lab", *arguments)
    assert found.exit_code == 2
    assert says in found.stderr
