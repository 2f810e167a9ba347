"""Search-R1 and ReTool as recipes: what tools answer is read by the policy and trained by nobody."""

import json
import re
from pathlib import Path

import pytest

from kifu.records import Origin, Purpose, Trajectory
from kifu.records.plan import read_plan
from kifu.records.reader import RunReader
from kifu.render import ChatRenderer
from kifu.rollout import tool_views
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import load_experiment
from kifu.training.inspection.audit import audit
from kifu.training.run import train
from kifu.training.update.assemble import bare_rows

RECIPES = Path(__file__).parents[2] / "recipes"
STAGES = {"search_r1_like": ["format", "search"], "retool_like": ["cold_start", "interpreter"]}


@pytest.fixture(scope="module", params=sorted(STAGES))
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = str(request.param)
    place = tmp_path_factory.mktemp(name) / "run"
    overrides = ["machine.threads=1", "evaluation.tasks=1"]
    train(load_experiment(RECIPES / f"{name}.toml", profile="check", overrides=overrides), out=place, quiet=True)
    return name, place


def origins(record: Trajectory) -> list[Origin]:
    """Of every token of its only context."""
    [tape] = record.tapes
    return [span.origin for span in tape.spans for _ in range(len(span))]


def test_the_recipe_runs_its_stages_and_its_record_is_whole(finished: tuple[str, Path]) -> None:
    name, run = finished
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == STAGES[name]
    report = audit(run)
    assert (report.problems, report.ledger_closed) == ((), True)


def test_what_tools_answer_is_in_the_context_and_never_trained(finished: tuple[str, Path]) -> None:
    _, run = finished
    answered = 0
    for record in RunReader(run).trajectories():
        if record.key.purpose is Purpose.EVALUATION:
            continue
        own = Origin.DEMONSTRATION if record.key.purpose is Purpose.DEMONSTRATION else Origin.POLICY
        who = origins(record)
        trained = {at for row in bare_rows(record) for at in row.positions.tolist()}
        assert trained == {at for at, origin in enumerate(who) if origin is own}
        answers = {at for at, origin in enumerate(who) if origin is Origin.ENVIRONMENT}
        assert not answers & trained
        answered += bool(answers) and max(trained) > min(answers)
    assert answered > 0, "some trained token was sampled with an answer before it"


def test_the_plan_of_the_cold_start_names_demonstrated_tokens_only(finished: tuple[str, Path]) -> None:
    _, run = finished
    known = {record.id: record for record in RunReader(run).trajectories()}
    [line] = [line for line in read_plan(run) if line.step == 0]

    assert len(line.rows) == 2
    for row in line.rows:
        who = origins(known[row.trajectory])
        assert {who[at] for part in row.runs for at in range(part.start, part.stop)} == {Origin.DEMONSTRATION}
        assert Origin.ENVIRONMENT in who


@pytest.mark.parametrize("name", ["code_repair", "key_door_llm", "key_door_text", "outbox", "python_tool", "r1_like"])
def test_a_grammar_can_spell_every_call_a_recipe_asks_for(name: str) -> None:
    setting = prepare(load_experiment(RECIPES / f"{name}.toml", profile="check")).setting
    assert isinstance(setting.renderer, ChatRenderer)
    grammar = setting.renderer.constraint(tool_views(setting.environment().tools()), None)
    begin = grammar.allowed(())
    assert setting.constrained
    assert begin is not None
    assert begin.size > 0


def test_those_are_all_recipes_with_tools_and_a_grammar() -> None:
    asked = {path.stem for path in RECIPES.glob("*.toml") if re.search(r'^decoding.*"tools"', path.read_text(), re.M)}
    assert asked == {"code_repair", "key_door_llm", "key_door_text", "outbox", "python_tool", "r1_like"}
