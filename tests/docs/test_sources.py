"""The register of sources: every paper that the code names is in it, and every entry says what it is worth."""

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
REGISTER = (TOP / "docs" / "sources.md").read_text()
KINDS = {"theorem", "definition", "report", "code", "format", "measured"}

NAMED = re.compile(r"\b([A-Z][a-z]+)(?:,? (?:and )?[A-Z][a-z]+)*(?: et al\.)?,? ?\(?((?:19|20)\d\d)\b")
"""A surname, perhaps more of them, and a year."""


def papers(text: str) -> set[tuple[str, str]]:
    """First surname and year of every paper a text names."""
    return set(NAMED.findall(re.sub(r"\s+", " ", text)))


def entries() -> list[list[str]]:
    """Cells of every row of the tables that have the column `checked`."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in REGISTER.splitlines() if line[:1] == "|"]
    return [
        row for row in rows if len(row) == 6 and row[0] not in ("claim or formula", "claim") and "---" not in row[0]
    ]


def test_every_paper_that_the_code_names_is_in_the_register() -> None:
    named = {paper for path in (TOP / "src").rglob("*.py") for paper in papers(path.read_text())}
    missing = [paper for paper in named if not any(paper[0] in row[1] and paper[1] in row[1] for row in entries())]
    assert {("Schulman", "2017"), ("Ng", "1999"), ("Sutton", "2000"), ("Hu", "2021")} <= named
    assert missing == []


def test_every_entry_says_what_kind_it_is_and_how_it_was_checked() -> None:
    assert len(entries()) > 30
    assert [row[0] for row in entries() if row[2] not in KINDS] == []
    assert [row[0] for row in entries() if not row[1] or not row[3] or not row[4]] == []


def test_files_that_the_register_names_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_0-9]+\.py)?)`", REGISTER)
    assert [name for name in named if not (TOP / "src/kifu" / name).exists() and not (TOP / name).exists()] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Schulman et al., 2017, eq. 7", {("Schulman", "2017")}),
        ("(Ng, Harada, Russell, 1999)", {("Ng", "1999")}),
        ("Loshchilov and Hutter, 2019", {("Loshchilov", "2019")}),
        ("Ng, Harada and Russell\n    (1999)", {("Ng", "1999")}),
        ("2017 tokens in May", set()),
    ],
)
def test_papers_are_found_as_they_are_written(text: str, found: set[tuple[str, str]]) -> None:
    assert papers(text) == found
