"""Judges of Best-of-N: what they see, the model of a run again, and what is refused."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from kifu.errors import ExperimentError, UsageError
from kifu.records.reader import RunReader
from kifu.training.experiment.reading import Loaded, load_experiment
from kifu.training.inspection.evaluate import Evaluation, evaluate
from kifu.training.inspection.judges import Candidate, CandidateTurn, candidate_of, judge_of
from kifu.training.inspection.opened_run import opened
from kifu.training.run import train

RECIPE = Path(__file__).parents[3] / "recipes" / "key_door.toml"
JUDGE = """
def turns(candidate):
    return len(candidate.turns)

def words(candidate):
    return candidate.answer


def broken(candidate):
    return 1 / 0


def unsure(candidate):
    return float("nan")
"""


def loaded(*overrides: str) -> Loaded:
    """The key_door recipe made small."""
    small = ("policy.hidden=16", "evaluation.tasks=2", "machine.threads=1", *overrides)
    return load_experiment(RECIPE, profile="check", overrides=small)


@pytest.fixture(scope="module")
def model_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learns from a reward model, fitted to the attempts of another."""
    root = tmp_path_factory.mktemp("runs")
    grouped = ("credit.algorithm=grpo", "update.group_size=16", "update.prompts_per_step=4", "update.steps=1")
    source = loaded("environment.on_truncation=terminal", *grouped)
    train(source, out=root / "source", seed=5, quiet=True)
    model = f"{{ runs = ['{root / 'source'}'], hidden = 4, steps = 5, batch = 8, learning_rate = 1e-2 }}"
    learner = loaded(
        f"credit={{ algorithm = 'rlhf_ppo', gamma = 1.0, reward_model = {model} }}",
        "update.steps=1",
        "update.prompts_per_step=3",
        "environment.on_truncation=terminal",
    )
    train(learner, out=root / "learner", seed=1, quiet=True)
    return root / "learner"


def test_the_model_of_a_run_scores_as_it_did_when_it_paid(model_run: Path) -> None:
    """The plan holds what every attempt was paid; the model is fitted again from the run folder alone."""
    plan = [json.loads(line) for line in (model_run / "plan.jsonl").read_text().splitlines()]
    paid = {row["trajectory"]: row["model_score"] for line in plan for row in line["rows"]}

    with opened(model_run) as run:
        scores = judge_of(str(model_run), run)(RunReader(model_run).trajectories())

    assert paid
    assert {name: scores[name] for name in paid} == pytest.approx(paid, abs=1e-9)


def test_the_highest_score_of_the_model_is_chosen_at_every_task(model_run: Path) -> None:
    summary = evaluate(model_run, Evaluation(tasks=2, best_of=3, judge=str(model_run)))

    [folder] = (model_run / "evaluations").iterdir()
    records = [*RunReader(folder).trajectories()]
    with opened(model_run) as run:
        scores = judge_of(str(model_run), run)(records)
    assert summary.best_of is not None
    assert (len(records), summary.tries) == (6, 3)
    for record in records:
        assert scores[summary.best_of.choices[record.task.id]] >= scores[record.id]


def test_a_run_without_a_reward_model_is_no_judge(model_run: Path) -> None:
    with opened(model_run) as run, pytest.raises(ExperimentError, match="fitted no reward model"):
        judge_of(str(model_run.with_name("source")), run)


def test_a_judge_sees_words_calls_and_answers_and_nothing_of_the_verdict(model_run: Path) -> None:
    record = next(item for item in RunReader(model_run).trajectories() if item.turns)
    found = candidate_of(record)

    assert [item.name for item in fields(Candidate)] == ["task", "family", "turns"]
    assert [item.name for item in fields(CandidateTurn)] == ["text", "calls", "results"]
    assert [turn.text for turn in found.turns] == [turn.text for turn in record.turns]
    assert found.answer == record.turns[-1].text
    assert record.verdict is not None


def test_a_function_that_gives_no_number_is_named(model_run: Path, tmp_path: Path) -> None:
    (tmp_path / "opinion.py").write_text(JUDGE)
    records = [*RunReader(model_run).trajectories()]
    with opened(model_run) as run:
        assert judge_of(f"{tmp_path}/opinion.py:turns", run)(records) == {
            item.id: float(len(item.turns)) for item in records if not item.outcome.infra_error
        }
        with pytest.raises(UsageError, match=r"opinion\.py:words` gave .* expected a finite number"):
            judge_of(f"{tmp_path}/opinion.py:words", run)(records)
        with pytest.raises(UsageError, match=r"opinion\.py:broken` raised ZeroDivisionError for .*division"):
            judge_of(f"{tmp_path}/opinion.py:broken", run)(records)
        with pytest.raises(UsageError, match=r"opinion\.py:unsure` gave nan for .* expected a finite number"):
            judge_of(f"{tmp_path}/opinion.py:unsure", run)(records)
        with pytest.raises(UsageError, match="has no function `none`"):
            judge_of(f"{tmp_path}/opinion.py:none", run)
        with pytest.raises(UsageError, match=r"found 'somebody', expected a run folder"):
            judge_of("somebody", run)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"best_of": 4}, "go together"),
        ({"judge": "x.py:f"}, "go together"),
        ({"best_of": 1, "judge": "x.py:f"}, "at least 2"),
        ({"best_of": 4, "judge": "x.py:f", "tries": 2}, "leave `tries` out"),
        ({"best_of": 4, "judge": "x.py:f", "decoding": "greedy"}, "all alike"),
    ],
)
def test_a_choice_that_is_none_is_refused(wanted: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Evaluation(**wanted)  # type: ignore[arg-type]
