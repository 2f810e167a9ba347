"""RLVR refuses every learned signal: before the run where it is declared, as no reward where it is not."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import ClassVar

import pytest

from kifu.envs import Capabilities, Component
from kifu.envs.suites.key_door import KeyDoor
from kifu.errors import ExperimentError, FailureRateError
from kifu.records import Purpose, Verdict
from kifu.records.reader import RunReader
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded
from kifu.training.run import train

HERE = Path(__file__).resolve()
Load = Callable[..., Loaded]
RLVR = ("credit.algorithm=rlvr", "update.group_size=4", "update.steps=1", "environment.on_truncation=terminal")
OTHER = ("credit.algorithm=grpo", *RLVR[1:])
SIGNAL = (
    "credit.signals={{ insight = {{ type = 'hindsight', weight = 0.1, scores = 'turns', labeller = 'a model', "
    "is_checkable = {checkable}, needs_continuation = true, is_repeatable = true, changes_optimum = true }} }}"
)


class Quiet(KeyDoor):
    """Its verdicts say that a model judged; it does not declare it."""

    def verify(self) -> Verdict:
        """As the room says, in the name of a model."""
        return replace(super().verify(), assurance="judge", verifier="opinion/1")


class Judged(Quiet):
    """Declares what its verdicts are."""

    capabilities: ClassVar[Capabilities] = replace(KeyDoor.capabilities, verify="judge")


class Praised(KeyDoor):
    """A component that nobody but its labeller can check."""

    components: ClassVar[Mapping[str, Component]] = {
        **KeyDoor.components,
        "praise": replace(KeyDoor.components["clue"], is_checkable=False),
    }


@pytest.mark.parametrize(
    ("changes", "field", "found"),
    [
        (("credit.reward_model={ runs = ['runs/none'] }",), r"credit\.reward_model", "a reward model"),
        ((SIGNAL.format(checkable="false"),), r"credit\.signals\.insight", "a learned signal of type `hindsight`"),
        ((SIGNAL.format(checkable="true"),), r"credit\.signals\.insight", "a learned signal of type `hindsight`"),
        ((f"environment.name='{HERE}:Judged'",), "environment `.*Judged`", "a model's judgement"),
        (
            (f"environment.name='{HERE}:Praised'", "credit.components={ praise = 0.5 }"),
            r"credit\.components\.praise",
            "that nobody else can check",
        ),
    ],
    ids=["reward model", "signal", "signal called checkable", "judge", "component"],
)
def test_a_learned_signal_is_refused_before_anything_is_written(
    load: Load, tmp_path: Path, changes: tuple[str, ...], field: str, found: str
) -> None:
    told = rf"^{field}: credit\.algorithm = `rlvr` is paid by what a program checks.*{found}"
    if field != r"credit\.reward_model":  # the digest of the runs it names stands in the protocol
        assert prepare(load(*OTHER, *changes)).stages[-1].method == "grpo"
    with pytest.raises(ExperimentError, match=told):
        prepare(load(*RLVR, *changes))
    with pytest.raises(ExperimentError, match=told):
        train(load(*RLVR, *changes), out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_judgement_that_is_not_declared_is_the_verifiers_failure_and_no_reward(load: Load, tmp_path: Path) -> None:
    quiet = f"environment.name='{HERE}:Quiet'"
    with pytest.raises(FailureRateError, match=r"verifier_error: a verdict of opinion/1 has assurance `judge`"):
        train(load(*RLVR, quiet), out=tmp_path / "run", quiet=True)
    assert {record.reward for record in RunReader(tmp_path / "run").trajectories()} == {None}

    train(load(*OTHER, quiet), out=tmp_path / "other", quiet=True)
    assert {record.reward for record in RunReader(tmp_path / "other").trajectories()} <= {0.0, 1.0}


def test_what_programs_checked_is_paid_as_written_out(load: Load, tmp_path: Path) -> None:
    """Success 0 or 1, a checked component on the way, relative to the attempts at the same task."""
    changes = ("credit.gamma=1.0", "update.prompts_per_step=6", "credit.components={ clue = 0.25 }")
    train(load(*RLVR, *changes), out=tmp_path / "run", quiet=True)

    groups: dict[int, dict[str, float]] = {}
    for record in RunReader(tmp_path / "run").trajectories():
        if record.key.purpose is Purpose.TRAIN:
            assert record.verdict is not None
            paid = float(record.verdict.success is True) + 0.25 * sum(
                turn.rewards.get("clue", 0.0) for turn in record.turns
            )
            groups.setdefault(record.key.group, {})[record.id] = paid
    wanted = {
        name: (paid - fmean(members.values())) / (stdev(members.values()) + 1e-6)
        for members in groups.values()
        if len(set(members.values())) > 1
        for name, paid in members.items()
    }
    rows = [
        row for line in (tmp_path / "run" / "plan.jsonl").read_text().splitlines() for row in json.loads(line)["rows"]
    ]
    assert {row["trajectory"] for row in rows} == set(wanted) != set()
    for row in rows:
        assert [run[3] for run in row["runs"]] == pytest.approx([wanted[row["trajectory"]]] * len(row["runs"]))
