"""SWE-RL as a recipe runs through the loop: nothing is executed, likeness is the reward, the record is whole."""

import json
from pathlib import Path

from kifu.records import Purpose
from kifu.records.reader import RunReader
from kifu.training.experiment.reading import load_experiment
from kifu.training.inspection.audit import audit
from kifu.training.run import train

RECIPE = Path(__file__).parents[2] / "recipes" / "swe_rl_like.toml"


def test_change_records_go_through_the_loop_and_what_is_out_of_form_is_minus_one(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"r{at}",
            "problem": f"f adds {at}",
            "files": {"f.py": f"def f(x):\n    return x + {at + 1}\n"},
            "oracle": {"f.py": f"def f(x):\n    return x + {at}\n"},
            "split": "held_out" if at > 5 else "train",
        }
        for at in range(8)
    ]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = [f"environment.name='swe_rl@{tmp_path}/records.jsonl'", "machine.threads=1", "update.patience=9"]
    train(load_experiment(RECIPE, profile="check", overrides=overrides), out=tmp_path / "run", quiet=True)

    found = [*RunReader(tmp_path / "run").trajectories()]
    shown = {item.key.purpose: item for item in found}
    assert {Purpose.TRAIN, Purpose.EVALUATION} == set(shown)
    assert {item.reward for item in found} == {-1.0}, "random letters are not in the form"
    assert {item.verdict.format_checks["readable"] for item in found if item.verdict is not None} == {False}
    assert {item.verdict.verifier for item in found if item.verdict is not None} == {"swe_rl/1"}
    report = audit(tmp_path / "run")
    assert (report.problems, report.ledger_closed) == ((), True)
