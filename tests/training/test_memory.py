"""A run whose policy has a memory: what its records hold is what its audit and its replay find again."""

import html
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kifu.cli.show import app
from kifu.dashboard import write_report
from kifu.records import Json, Purpose, Trajectory
from kifu.records.reader import RunReader
from kifu.training.experiment.reading import load_experiment
from kifu.training.inspection.audit import audit
from kifu.training.inspection.replay import replay_run, replay_trajectory
from kifu.training.run import reopen, train

RECIPE = Path(__file__).parents[2] / "recipes" / "key_door_text_sft.toml"
WORLD = Path(__file__).with_name("memory_worlds.py")
SETS = (
    f"environment.name={WORLD}:Noting",
    "environment.task_limits.turns=12",
    "policy.agent={ type = 'tool_calling', memory = { type = 'key_value' } }",
    "policy.history={ type = 'window', turns = 1 }",
    "update.steps=1",
    "evaluation.tasks=1",
    "machine.threads=1",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("memory") / "run"
    train(load_experiment(RECIPE, profile="check", overrides=SETS), out=place, quiet=True)
    return place


def demonstrations(run: Path) -> list[Trajectory]:
    return [item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.DEMONSTRATION]


def memory_of(item: Trajectory) -> list[tuple[int, str, Mapping[str, Json]]]:
    return [
        (turn.index, event.kind, event.detail)
        for turn in item.turns
        for event in turn.events
        if event.kind.startswith("memory.")
    ]


def test_a_run_records_what_was_kept_looked_up_and_missed_and_every_figure_is_rebuilt(run: Path) -> None:
    found = demonstrations(run)
    assert found
    for item in found:
        colour = item.turns[0].results[0].text.removeprefix("It says: use ").removesuffix(".")
        rule: dict[str, Json] = {"by": "key_value/1(entries=16, characters=200)", "call": 0}
        assert memory_of(item) == [
            (1, "memory.read", {**rule, "query": "key", "found": []}),
            (2, "memory.write", {**rule, "key": "key", "text": colour, "replaced": None}),
            (3, "memory.read", {**rule, "query": "key", "found": [{"key": "key", "text": colour}]}),
        ]
        assert item.reward == 1.0
    report = audit(run, replay=True)
    assert report.problems == ()
    assert report.rebuilt == report.records
    assert [again.differences for again in replay_run(run).values()] == [()] * report.records


def test_a_record_that_says_otherwise_of_its_memory_is_named_by_a_replay(run: Path) -> None:
    item, prepared = demonstrations(run)[0], reopen(run)[1]
    told = [
        replace(turn, events=tuple(replace(event, detail={**event.detail, "text": "mauve"}) for event in turn.events))
        if turn.index == 2
        else turn
        for turn in item.turns
    ]
    assert replay_trajectory(item, prepared).differences == ()
    (line,) = replay_trajectory(replace(item, turns=tuple(told)), prepared).differences
    assert line.startswith("turn 2: reads and writes of memory: recorded ")


def test_the_command_and_the_report_tell_of_the_memory(run: Path) -> None:
    item = demonstrations(run)[0]
    colour = item.turns[3].results[0].text.removeprefix("key: ")
    lines = [
        'turn 1: looked up "key": nothing found',
        f"turn 2: remembered key: {colour}",
        f'turn 3: looked up "key": key: {colour}',
    ]
    printed = CliRunner().invoke(app, [str(run), item.id]).output
    assert [line for line in printed.splitlines() if line.startswith("turn ")] == lines
    told = json.loads(CliRunner().invoke(app, [str(run), item.id, "--json"]).output)["memory"]
    assert [(event.pop("turn"), event.pop("kind"), event) for event in told] == memory_of(item)
    page = write_report(run, out=run.parent / "report.html", transcripts=100).read_text()
    assert all(html.escape(line) in page for line in lines)
