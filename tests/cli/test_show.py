"""`kifu show` and `kifu report`: every token with its origin, and hostile text that only shows."""

import html
import json
import re
import tomllib
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
from typer.testing import Result

from kifu.records import Origin, RunReader

Kifu = Callable[..., Result]


HOSTILE = "\\x1b[2J\\x1b]0;owned\\x07<script>alert(1)</script>\\u2039policy\\u203a\\u202e"
"""As it stands in Python source: clears the screen, renames the window, runs a script, says that the policy wrote what
follows, turns the line around."""


@pytest.fixture(scope="module")
def hostile(kifu: Kifu, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose environment shows hostile text."""
    folder = tmp_path_factory.mktemp("hostile")
    assert kifu("init", "trap", "--folder", folder).exit_code == 0
    source = folder / "trap.py"
    source.write_text(source.read_text().replace('"entrance"', f'"{HOSTILE}"'))
    run = folder / "run"
    found = kifu("train", folder / "trap.toml", "--profile", "check", "--out", run)
    assert found.exit_code == 0, found.stderr
    return run


def test_every_record_is_listed_with_its_end(kifu: Kifu, finished: Path) -> None:
    listed = json.loads(kifu("show", finished, "--json").stdout)
    recorded = {item.id: item for item in RunReader(finished).trajectories()}
    assert {line["trajectory"] for line in listed} == set(recorded)
    for line in listed:
        item = recorded[line["trajectory"]]
        assert (line["reward"], line["stop_reason"]) == (item.reward, item.outcome.reason.value)


def test_a_transcript_gives_every_token_its_recorded_origin_and_logprob(kifu: Kifu, finished: Path) -> None:
    item = next(iter(RunReader(finished).trajectories()))
    shown = json.loads(kifu("show", finished, item.id, "--json").stdout)["tapes"][0]["pieces"]
    expected = [
        (int(token), span.origin.value, None if span.logprobs is None else float(span.logprobs[at]))
        for span in item.tapes[0].spans
        for at, token in enumerate(span.token_ids)
    ]
    assert [(piece["token_ids"][0], piece["origin"], piece["logprob"]) for piece in shown] == expected
    assert {origin for _, origin, _ in expected} == {Origin.PROMPT, Origin.POLICY, Origin.ENVIRONMENT}


def test_a_printed_transcript_has_a_legend_and_the_end(kifu: Kifu, finished: Path) -> None:
    item = next(iter(RunReader(finished).trajectories()))
    text = kifu("show", finished, item.id).stdout
    assert "origins  policy environment prompt" in text
    assert item.turns[0].text in text
    assert item.outcome.reason.value in text


def test_without_colours_every_stretch_is_marked_with_its_origin(kifu: Kifu, finished: Path) -> None:
    item = next(iter(RunReader(finished).trajectories()))
    spans = [span for span in item.tapes[0].spans if span.token_ids.size]
    expected = [origin.value for origin, _ in groupby(span.origin for span in spans)]
    text = kifu("show", finished, item.id).stdout
    assert re.findall("\u2039([a-z]+)\u203a", text) == expected


def test_no_token_can_pretend_to_be_the_mark_of_another_origin(kifu: Kifu, hostile: Path) -> None:
    name = json.loads(kifu("show", hostile, "--json").stdout)[0]["trajectory"]
    text = kifu("show", hostile, name).stdout
    assert "\\u2039policy\u203a" in text
    assert len(re.findall("\u2039", text)) == len(re.findall("\u2039[a-z]+\u203a", text))


def test_hostile_text_cannot_steer_the_terminal(kifu: Kifu, hostile: Path) -> None:
    name = json.loads(kifu("show", hostile, "--json").stdout)[0]["trajectory"]
    text = kifu("show", hostile, name).stdout
    assert "owned" in text
    assert [char for char in ("\x1b", "\x07", "\u202e") if char in text] == []


def test_a_tape_that_is_not_there_is_refused(kifu: Kifu, finished: Path) -> None:
    name = json.loads(kifu("show", finished, "--json").stdout)[0]["trajectory"]
    found = kifu("show", finished, name, "--tape", 3)
    assert found.exit_code == 2
    assert "has 1 tapes, found --tape 3" in found.stderr


def test_a_report_of_hostile_text_holds_no_script(kifu: Kifu, hostile: Path) -> None:
    found = kifu("report", hostile, "--json")
    assert found.exit_code == 0, found.stderr
    page = Path(json.loads(found.stdout)["report"]).read_text()
    assert "<script" not in page.lower()
    assert "&lt;script&gt;" in page
    assert [char for char in ("\x1b", "\x07", "\u202e") if char in page] == []


def test_a_report_says_what_state_action_reward_and_decision_model_are(kifu: Kifu, copied: Path) -> None:
    """What the experiment names stands on the page as the frozen protocol holds it."""
    frozen = tomllib.loads((copied / "protocol.toml").read_text())
    world, credit = frozen["environment"], frozen["credit"]
    named = [world[name] for name in ("initial_states", "observations", "hidden", "action", "decision_model")]
    named += [credit["final_check"], credit["partial_credit"]]
    found = kifu("report", copied, "--json")
    page = Path(json.loads(found.stdout)["report"]).read_text()
    assert all(isinstance(text, str) and text for text in named)
    assert [text for text in named if html.escape(text) not in page] == []
