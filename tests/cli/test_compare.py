"""``kifu compare`` over real runs: rows, conditions, intervals, and folders that cannot be compared."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy.stats import norm  # type: ignore[import-untyped]
from typer.testing import Result

import kifu as package
from kifu.monitor import RunFolder

Kifu = Callable[..., Result]


@pytest.fixture(scope="module")
def trained(kifu: Kifu, finished: Path) -> Callable[..., Path]:
    """Trains like the finished run, with other settings."""

    def train(name: str, *sets: str, seed: int = 1) -> Path:
        out = finished.parent / name
        everything = ("update.steps=3", "evaluation.tasks=6", "record.checkpoint_every=2", *sets)
        arguments = [part for item in everything for part in ("--set", item)]
        source = finished.parent / "small.toml"
        found = kifu("train", source, "--profile", "check", "--seed", seed, "--out", out, *arguments)
        assert found.exit_code == 0, found.stderr
        return out

    return train


@pytest.fixture(scope="module")
def seed_2(trained: Callable[..., Path]) -> Path:
    """The finished run with another seed."""
    return trained("seed-2", seed=2)


@pytest.fixture(scope="module")
def other(trained: Callable[..., Path]) -> Path:
    """Another method on a smaller model."""
    terminal = "environment.on_truncation=terminal"
    return trained("other", "policy.hidden=32", "credit.options={}", 'credit.algorithm="reinforce"', terminal)


def wins(kifu: Kifu, run: Path) -> list[bool]:
    """Successes of a run's last evaluation, as its records are listed."""
    lines = json.loads(kifu("show", run, "--json").stdout)
    judged = [line for line in lines if line["purpose"] == "evaluation"]
    last = max(line["step"] for line in judged)
    return [line["success"] for line in judged if line["step"] == last]


def test_differences_are_named_field_by_field_and_seeds_stand_in_one_row(
    kifu: Kifu, finished: Path, seed_2: Path, other: Path
) -> None:
    """Model and reduction unit differ; environment, verifier and rollouts do not."""
    found = json.loads(kifu("compare", finished, seed_2, other, "--json").stdout)

    named = {(item["condition"], item["field"]): item["values"] for item in found["differences"]}
    assert found["equal_conditions"] is False
    assert {condition for condition, _ in named if condition} == {"model", "reduction unit"}
    assert named["model", "policy.hidden"] == {"A": 64, "B": 32}
    assert named["reduction unit", "update.reduction"]["A"] == "turn"
    assert named[None, "credit.algorithm"] == {"A": "actor_critic", "B": "reinforce"}
    assert [(row["method"], row["seeds"]) for row in found["rows"]] == [("actor_critic", [1, 2]), ("reinforce", [1])]
    assert [row["used"]["rollouts"] for row in found["rows"]] == [12.0, 12.0]
    for row in found["rows"]:
        assert {"success_per_rollout", "rollouts_per_second", "tokens_per_second"} <= set(row["efficiency"])
        assert {"generation", "tools", "environment", "waiting", "training"} == set(row["efficiency"]["share"])


def test_success_is_that_of_the_records_with_wilson_s_interval(kifu: Kifu, finished: Path, other: Path) -> None:
    """One run a row, one try a task: the formula, over the successes that `kifu show` lists."""
    rows = json.loads(kifu("compare", finished, other, "--json").stdout)["rows"]

    z = float(norm.ppf(0.975))
    for row, run in zip(rows, (finished, other), strict=True):
        won, n = sum(wins(kifu, run)), 6
        p = won / n
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        center = (p + z * z / (2 * n)) / (1 + z * z / n)
        assert row["after"]["mean"] == pytest.approx(p)
        assert (row["after"]["low"], row["after"]["high"]) == pytest.approx((center - half, center + half))
    difference = rows[1]["against_first"]
    assert difference["tasks"] == 6
    assert difference["difference"]["mean"] == pytest.approx(rows[1]["after"]["mean"] - rows[0]["after"]["mean"])


def test_methods_under_equal_conditions_are_said_to_be(
    kifu: Kifu, finished: Path, seed_2: Path, other: Path, trained: Callable[..., Path]
) -> None:
    """Only an option of the method differs, and `--strict` is content; with another model it is not."""
    variant = trained("variant", "credit.options={entropy_coefficient=0.0}")

    equal, unequal = (kifu("compare", finished, run, "--strict") for run in (variant, other))

    assert equal.exit_code == 0
    assert "equal conditions: environment, model, budget, verifier, reduction unit" in equal.stdout
    assert "credit.options.entropy_coefficient" in equal.stdout
    assert unequal.exit_code == 1
    assert "NOT of equal conditions: model, reduction unit" in unequal.stdout
    assert kifu("compare", finished, other).exit_code == 0


def test_python_has_the_same_function(finished: Path, seed_2: Path) -> None:
    """`kifu.compare` gives what the command prints."""
    found = package.compare(finished, seed_2)

    assert [row.seeds for row in found.rows] == [(1, 2)]
    assert found.equal_conditions


def test_what_cannot_be_compared_is_refused_with_the_reason(
    kifu: Kifu, finished: Path, copied: Path, tmp_path: Path
) -> None:
    """One run, no run, the same twice, a copy, half a run, a newer format, a changed protocol."""

    def error(*runs: Path) -> str:
        found = kifu("compare", *runs)
        assert found.exit_code != 0
        return found.stderr

    assert "found 1 run, expected two or more" in error(finished)
    assert f"{tmp_path}: no run here" in error(finished, tmp_path)
    assert "one protocol and one seed, 1" in error(finished, finished)
    assert "one protocol and one seed, 1" in error(finished, copied)
    running = Path(shutil.copytree(finished, tmp_path / "running"))
    RunFolder(root=running).write_facts({**RunFolder(root=running).facts(), "status": "running"})
    assert "status is `running`, expected `finished`" in error(finished, running)
    newer = Path(shutil.copytree(finished, tmp_path / "newer"))
    (newer / "run.json").write_text(json.dumps({**RunFolder(root=newer).facts(), "format": 99}))
    assert "format 99, this kifu reads up to" in error(newer, finished)
    (copied / "protocol.toml").write_text((copied / "protocol.toml").read_text().replace("hidden = 64", "hidden = 32"))
    assert "protocol.toml: SHA-256" in error(finished, copied)
