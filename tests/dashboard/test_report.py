"""The page: complete, self-contained, and deaf to whatever a record says."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from kifu.dashboard import learning_curve, render_report, write_report
from kifu.dashboard.reading import RunView
from kifu.errors import StorageError

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Every tag with its attributes, and the text between; tags must close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def close(self) -> None:
        super().close()
        assert self._open == []


@pytest.fixture(scope="module")
def page(run: RunView) -> Page:
    found = Page()
    found.feed(render_report(run))
    found.close()
    return found


def test_no_text_of_a_record_becomes_markup(page: Page) -> None:
    tags = {tag for tag, _ in page.tags}
    assert tags & {"script", "img", "iframe", "object", "embed", "link", "form", "a"} == set()
    names = {name for _, attributes in page.tags for name in attributes}
    assert [name for name in names if name.startswith("on")] == []
    assert names & {"src", "href", "action", "srcdoc"} == set()


def test_hostile_text_is_shown_as_text(page: Page) -> None:
    whole = "".join(page.texts)
    assert "<script>alert(1)</script>" in whole
    assert "<b>bold</b>" in whole


def test_control_and_bidi_characters_are_written_out(run: RunView) -> None:
    text = render_report(run)
    assert [char for char in ("\x1b", "\u202e") if char in text] == []
    assert "\\u{202e}" in text


def test_the_page_loads_nothing_and_forbids_scripts(page: Page, run: RunView) -> None:
    policies = [
        item for tag, item in page.tags if tag == "meta" and item.get("http-equiv") == "Content-Security-Policy"
    ]
    assert [policy["content"] for policy in policies] == ["default-src 'none'; style-src 'unsafe-inline'"]
    text = render_report(run)
    assert "@import" not in text
    assert "url(" not in text


def test_every_part_is_there(page: Page) -> None:
    whole = "".join(page.texts)
    parts = ("Learning curve", "Evaluations", "Both efficiencies", "Audit", "Ledger", "Gradient weight", "Transcripts")
    assert [part for part in (*parts, "Cards", "Protocol") if part not in whole] == []


def test_figures_are_those_of_the_records(page: Page) -> None:
    # 3 of 4 evaluation records succeed: Wilson's interval at 95 % is [0.3006, 0.9544].
    assert {"0.750", "0.301", "0.954"} <= set(page.texts)
    # Two rollouts at 4 a second took half a second, in which 6 tokens were sampled.
    assert {"4.0", "12"} <= set(page.texts)
    assert "2 (6)" in page.texts
    assert "closes in every step" in page.texts


def test_tokens_carry_origin_and_logprob_on_hover(page: Page) -> None:
    titles = [item["title"] or "" for tag, item in page.tags if tag == "span" and "title" in item]
    assert any(title.startswith("policy") and "logprob -0.2500" in title for title in titles)
    assert any(title.startswith("environment") and "logprob" not in title for title in titles)


def test_light_and_dark_are_both_styled(run: RunView) -> None:
    assert "prefers-color-scheme: dark" in render_report(run)


def test_the_page_is_written_into_the_run_folder_or_where_asked(trap: Path, tmp_path: Path) -> None:
    assert write_report(trap) == trap / "report.html"
    other = write_report(trap, out=tmp_path / "deep" / "page.html", transcripts=0)
    assert other.read_text().startswith("<!doctype html>")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no run here"):
        write_report(tmp_path)


def test_the_learning_curve_stands_alone_as_svg(trap: Path) -> None:
    found = Page()
    found.feed(learning_curve(trap))
    found.close()
    assert found.tags[0][0] == "svg"
    assert found.tags[0][1]["xmlns"] == "http://www.w3.org/2000/svg"
    assert {"style", "polyline", "circle"} <= {tag for tag, _ in found.tags}
