"""Rows, intervals and differences of runs, against counts and formulas written out here."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import norm  # type: ignore[import-untyped]

from kifu.evaluation import Condition
from kifu.evaluation.runs import FinishedRun, compared, success_over_runs
from kifu.records import Branch, Purpose, StopReason, Trajectory, Verdict

Make = Callable[..., Trajectory]

PROTOCOL: dict[str, dict[str, Any]] = {
    "environment": {"id": "door", "version": "1", "options": {}, "collector_limits": {"turns": 6}},
    "policy": {"weights_digest": "aa", "decoding": {"temperature": 1.0}},
    "credit": {"algorithm": "grpo", "options": {"eps": 1e-6}},
    "update": {"reduction": "trajectory", "steps": 2},
    "evaluation": {"split": "held_out", "tasks": 3},
}


def changed(field: str, value: object) -> dict[str, dict[str, Any]]:
    """The protocol with one field set."""
    tables: Any = copy.deepcopy(PROTOCOL)
    *path, last = field.split(".")
    table = tables
    for name in path:
        table = table[name]
    table[last] = value
    return dict(tables)


@pytest.fixture
def run(make: Make) -> Callable[..., FinishedRun]:
    """Builds a run from what its three evaluated tasks came to, before and after."""

    def build(
        after: str,
        *,
        before: str = "000",
        seed: int = 0,
        protocol: Mapping[str, Any] = PROTOCOL,
        training: int = 4,
        machine: str = "cpu X",
    ) -> FinishedRun:
        def judged(outcomes: str) -> list[Trajectory]:
            return [make(f"t{at}", won == "1") for at, won in enumerate(outcomes)]

        rollouts = [
            make("train", member == 0, member=member, turns=2, tokens=5, purpose=Purpose.TRAIN)
            for member in range(training)
        ]
        return FinishedRun(
            folder=f"runs/{seed}",
            seed=seed,
            protocol_hash=str(protocol),
            protocol=protocol,
            training=rollouts,
            before=judged(before),
            after=judged(after),
            metrics=[
                {
                    "step": at,
                    "cpu_seconds": 1.5,
                    "rollouts": 2,
                    "rollouts_per_second": 4.0,
                    "time/generation_s": 0.3,
                    "time/training_s": 0.1,
                }
                for at in range(2)
            ],
            machine=machine,
        )

    return build


Build = Callable[..., FinishedRun]


def wilson_by_hand(rate: float, trials: float) -> tuple[float, float]:
    z = float(norm.ppf(0.975))
    spread = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    return tuple((rate + z**2 / (2 * trials) + side * spread) / (1 + z**2 / trials) for side in (-1, 1))  # type: ignore[return-value]


def test_runs_that_differ_in_their_seed_alone_are_one_row(run: Build) -> None:
    """Two seeds of one protocol, one of another."""
    found = compared([run("111", seed=1), run("110", seed=2), run("000", protocol=changed("credit.algorithm", "rloo"))])

    assert [(row.name, row.method, row.seeds) for row in found.rows] == [("A", "grpo", (1, 2)), ("B", "rloo", (0,))]
    assert found.equal_conditions


def test_the_interval_of_one_run_is_wilson_s_over_its_tasks(run: Build) -> None:
    """None of three tasks before, two after."""
    row = compared([run("110")]).rows[0]

    before, after = row.before, row.after
    assert before is not None
    assert after is not None
    assert (before.mean, before.low, before.high) == pytest.approx((0.0, *wilson_by_hand(0.0, 3)))
    assert after.mean == pytest.approx(2 / 3)
    assert (after.low, after.high) == pytest.approx(wilson_by_hand(2 / 3, 3))


def test_the_interval_over_runs_knows_that_tries_of_a_run_share_its_luck(make: Make) -> None:
    """Rates 0.9, 0.5, 0.1 over 10 tasks each: var = 3/2 * (4^2 + 0 + 4^2) / 30^2, n_eff = 0.25 / var, at least 3."""
    runs = [[make(f"t{at}", at < wins) for at in range(10)] for wins in (9, 5, 1)]

    found = success_over_runs(runs)

    effective = max(3.0, 0.25 / (1.5 * 32 / 900))
    assert found is not None
    assert found.mean == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx(wilson_by_hand(0.5, effective))
    assert found.high - found.low > 1.5 * (wilson_by_hand(0.5, 30)[1] - wilson_by_hand(0.5, 30)[0])


def test_nothing_judged_is_no_success(make: Make) -> None:
    """An error in every run says nothing about a policy."""
    error = [make("t0", None, reason=StopReason.ENV_ERROR)]

    assert success_over_runs([error, error]) is None


@pytest.mark.parametrize(
    ("field", "value", "condition"),
    [
        ("environment.version", "2", Condition.ENVIRONMENT),
        ("environment.options.keys", 3, Condition.ENVIRONMENT),
        ("environment.collector_limits.turns", 9, Condition.ENVIRONMENT),
        ("evaluation.split", "other", Condition.ENVIRONMENT),
        ("policy.weights_digest", "bb", Condition.MODEL),
        ("policy.decoding.temperature", 0.7, Condition.MODEL),
        ("update.reduction", "token", Condition.REDUCTION),
        ("environment.on_truncation", "bootstrap", None),
        ("credit.options.eps", 0.1, None),
        ("update.steps", 5, None),
    ],
)
def test_a_field_that_differs_is_named_with_what_each_row_has(
    run: Build, field: str, value: object, condition: Condition | None
) -> None:
    """One field of one layer at a time; what belongs to the method leaves conditions equal."""
    found = compared([run("000"), run("000", protocol=changed(field, value))])

    was: Any = PROTOCOL
    for name in field.split("."):
        was = was.get(name) if isinstance(was, dict) else None
    assert [(item.condition, item.field, item.values) for item in found.differences] == [
        (condition, field, (was, value))
    ]
    assert found.equal_conditions is (condition is None)


def test_another_number_of_rollouts_is_another_budget(run: Build) -> None:
    """4 rollouts against 6, and a row of 4 and 6 that used 5 on average."""
    other = changed("update.steps", 3)

    found = compared([run("000", seed=0), run("000", seed=1, training=6), run("000", protocol=other, training=4)])

    assert [(item.condition, item.values) for item in found.unequal] == [(Condition.BUDGET, (5.0, 4.0))]


def test_another_verifier_is_named(run: Build) -> None:
    """Verdicts of the last evaluation say who judged."""
    first, second = run("000"), run("000", protocol=changed("update.steps", 3))
    judged = [replace(item, verdict=Verdict(success=False, verifier="door/2")) for item in second.after]

    found = compared([first, replace(second, after=judged)])

    assert [(item.condition, item.values) for item in found.unequal] == [(Condition.VERIFIER, (["door/1"], ["door/2"]))]


def test_what_training_used_is_counted_per_run_from_the_records(run: Build) -> None:
    """4 rollouts of 2 turns and 5 tokens, one a success; 2 steps of 1.5 CPU-seconds and 0.5 s of collecting."""
    row = compared([run("000", seed=0), run("000", seed=1)]).rows[0]

    assert row.used.to_json() == {"rollouts": 4.0, "environment_steps": 8.0, "tokens": 20.0, "cpu_seconds": 3.0}
    told = row.efficiency.to_json()
    assert told["success_per_rollout"] == pytest.approx(2 / 8)
    assert told["rollouts_per_second"] == pytest.approx(8 / 2)
    assert told["tokens_per_second"] == pytest.approx(40 / 2)
    assert told["share"] == pytest.approx({"generation": 0.75, "training": 0.25})


def test_a_branch_used_only_the_turns_that_it_wrote_itself(make: Make, run: Build) -> None:
    """A rollout of 2 turns, and one that left it before the second."""
    trunk, leaf = (make("t", True, member=member, turns=2, purpose=Purpose.TRAIN) for member in (0, 1))
    origin = Branch(tree="t", parent=trunk.id, turn=1, chosen_by="entropy", restored_by="snapshot", digest="d")
    branched = replace(run("000"), training=[trunk, replace(leaf, branch=origin)])

    assert compared([branched]).rows[0].used.environment_steps == 3.0


def test_machines_on_which_times_were_measured_are_named(run: Build) -> None:
    """No condition, for success does not depend on them."""
    found = compared([run("000", machine="cpu Y"), run("000", seed=1), run("000", protocol=changed("update.steps", 3))])

    assert [row.machines for row in found.rows] == [("cpu X", "cpu Y"), ("cpu X",)]
    assert found.equal_conditions


def test_rows_are_paired_with_the_first_by_task(run: Build) -> None:
    """First: rates 1/2, 1/2, 0 over two seeds; second: 1, 0, 1. Differences 1/2, -1/2, 1."""
    other = changed("credit.algorithm", "rloo")

    rows = compared([run("100", seed=0), run("010", seed=1), run("101", protocol=other)]).rows

    paired = rows[1].against_first
    assert rows[0].against_first is None
    assert paired is not None
    assert (paired.tasks, paired.better, paired.worse) == (3, 2, 1)
    assert paired.difference.mean == pytest.approx(1 / 3)


@pytest.mark.parametrize("field", ["environment.version", "environment.options.keys", "environment.id"])
def test_tasks_of_another_world_are_not_paired(run: Build, field: str) -> None:
    """Ids are equal; tasks need not be."""
    assert compared([run("111"), run("111", protocol=changed(field, "2"))]).rows[1].against_first is None


def test_tasks_that_are_not_the_same_are_not_paired(run: Build, make: Make) -> None:
    """No id in common."""
    first, second = run("111"), run("111", protocol=changed("evaluation.tasks", 4))
    elsewhere = replace(second, after=[make("u0", True)])

    assert compared([first, elsewhere]).rows[1].against_first is None
