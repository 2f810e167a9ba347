"""What the documents promise: links lead somewhere, decisions are numbered, recipes and rooms are described."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGES = sorted([*TOP.glob("*.md"), *TOP.glob("docs/**/*.md")])
DECISIONS = sorted((TOP / "docs" / "decisions").glob("*.md"))
ROOMS = sorted(p.name for p in (TOP / "src" / "kifu").iterdir() if (p / "__init__.py").is_file())
RECIPES = sorted(TOP.glob("recipes/*.toml"))
FRAGMENTS = sorted(path for path in (TOP / "changelog.d").iterdir() if path.suffix == ".md")

LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")


def dead_links(page: Path) -> list[str]:
    """Relative links of a page to files that do not exist."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = [target for target in LINK.findall(text) if "://" not in target and not target.startswith("mailto:")]
    return [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(TOP).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[self](page.md#top) [gone](other.md) [far](https://example.org/x.md)\n```\n[code](no.md)\n```\n")
    assert dead_links(page) == ["other.md"]


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:3]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_says_what_was_asked_chosen_and_rejected(path: Path) -> None:
    text = path.read_text()
    missing = [part for part in ("Question", "Choice", "Rejected", "What would change our mind") if part not in text]
    assert missing == []
    assert text.startswith(f"# {path.name[:3]} ")


def test_the_architecture_names_every_room() -> None:
    text = (TOP / "docs" / "architecture.md").read_text()
    assert [room for room in ROOMS if f"{room}/" not in text] == []


def test_every_recipe_is_mentioned_in_a_page() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert [path.name for path in RECIPES if f"recipes/{path.name}" not in text] == []


def test_changelog_fragments_have_a_known_kind_and_say_something() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    kinds = {kind["directory"] for kind in project["tool"]["towncrier"]["type"]}
    wrong = [
        path.name
        for path in FRAGMENTS
        if not path.name.startswith("+") or path.name.split(".")[-2] not in kinds or not path.read_text().strip()
    ]
    assert wrong == []


def names_in(file: Path) -> set[str]:
    """Names of a file's tests as pytest addresses them, those of a class behind its name."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    body = ast.parse(file.read_text()).body
    inner = {
        f"{one.name}::{part.name}"
        for one in body
        if isinstance(one, ast.ClassDef)
        for part in one.body
        if isinstance(part, kinds)
    }
    return {one.name for one in body if isinstance(one, kinds)} | inner


def unproved_claims(table: str, top: Path) -> list[str]:
    """Tests a table of promises names that do not exist."""
    missing = []
    for claim in re.findall(r"`(tests/[^`]+)`", table):
        path, _, name = claim.partition("::")
        file = top / path
        if not file.is_file() or (name and name not in names_in(file)):
            missing.append(claim)
    return missing


def test_every_test_that_conformance_names_exists() -> None:
    assert unproved_claims((TOP / "docs" / "conformance.md").read_text(), TOP) == []


def test_every_row_of_conformance_is_proved_or_open() -> None:
    rows = re.findall(r"^\| ([A-H]\d+) \|.*\| ([^|]*) \|$", (TOP / "docs" / "conformance.md").read_text(), re.M)
    assert len({name for name, _ in rows}) == len(rows) > 0
    assert [name for name, proof in rows if proof != "open" and "`tests/" not in proof] == []


def test_a_claim_without_its_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "def test_one() -> None: ...\nclass TestTwo:\n    def test_in(self) -> None: ...\n"
    )
    real = ("test_a.py", "test_a.py::test_one", "test_a.py::TestTwo::test_in")
    wrong = ("test_a.py::test_o", "test_b.py", "test_a.py::test_in", "test_a.py::TestTwo::test_one")
    table = " ".join(f"| `tests/{name}` |" for name in (*real, *wrong))
    assert unproved_claims(table, tmp_path) == [f"tests/{name}" for name in wrong]
