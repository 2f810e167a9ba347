"""Summaries of hand-made rollouts, counted by hand."""

import json
from collections.abc import Callable

import pytest

from kifu.errors import UsageError
from kifu.evaluation import Efficiency, TrainingHistory, summarize, wilson
from kifu.records import Purpose, StopReason, Trajectory

Make = Callable[..., Trajectory]


def test_infrastructure_errors_leave_the_rate_untouched_and_are_counted(make: Make) -> None:
    """3 of 4 judged tries succeed; two technical errors and one silent verifier change nothing but their own counts."""
    found = summarize(
        [
            make("a", True),
            make("b", True),
            make("c", True, family="blue"),
            make("d", False, family="blue", reason=StopReason.TURN_LIMIT),
            make("a", None, attempt=1, reason=StopReason.ENV_ERROR),
            make("e", None, reason=StopReason.ENGINE_ERROR),
            make("f", None, reason=StopReason.NATURAL_END),
        ]
    )

    assert found.success.interval == wilson(3, 4)
    assert (found.tasks, found.tries, found.attempts, found.unjudged) == (6, 1, 7, 1)
    assert found.errors == {"engine_error": 1, "env_error": 1}
    assert found.stops == {"natural_end": 1, "success": 3, "turn_limit": 1}
    assert found.by_family["blue"].interval == wilson(1, 2)
    assert found.by_family["red"].judged == 2


def test_the_json_has_the_promised_shape(make: Make) -> None:
    """Names, nesting and order that scripts of others rely on; plain JSON throughout."""
    summary = summarize([make("a", True, turns=3), make("b", False, turns=4)], run="runs/x", checkpoint="12")

    found = json.loads(json.dumps(summary.to_json(), allow_nan=False))

    assert list(found)[:9] == [
        "run",
        "checkpoint",
        "split",
        "tasks",
        "tries",
        "success",
        "by_family",
        "turns",
        "errors",
    ]
    assert (found["run"], found["checkpoint"], found["split"]) == ("runs/x", "12", "held_out")
    assert (found["tasks"], found["tries"], found["errors"]) == (2, 1, {})
    assert found["success"]["mean"] == 0.5
    assert found["success"]["low"] < 0.5 < found["success"]["high"]
    assert found["by_family"]["red"]["mean"] == 0.5
    assert found["turns"]["mean"] == 3.5


def test_nothing_judged_is_null_not_zero(make: Make) -> None:
    """Only technical errors: no rate, no turns."""
    found = summarize([make("a", None, reason=StopReason.ENV_ERROR)]).to_json()

    assert found["success"] == {"mean": None, "low": None, "high": None}
    assert found["turns"]["mean"] is None
    assert found["reliability"] == []


def test_reliability_over_tries_is_the_mean_over_tasks(make: Make) -> None:
    """Tries 2 of 3 and 3 of 3: pass@2 = 1, pass^2 = (1/3 + 1) / 2, pass^3 = 1/2."""
    wins = {"a": [True, True, False], "b": [True, True, True]}
    found = summarize([make(t, won, member=at) for t, row in wins.items() for at, won in enumerate(row)])

    assert found.tries == 3
    assert [(item.k, item.tasks) for item in found.reliability] == [(1, 2), (2, 2), (3, 2)]
    assert [item.pass_at_k for item in found.reliability] == pytest.approx([5 / 6, 1.0, 1.0])
    assert [item.pass_hat_k for item in found.reliability] == pytest.approx([5 / 6, 2 / 3, 1 / 2])


def test_a_retry_after_a_technical_error_is_the_same_try(make: Make) -> None:
    """Attempt 1 of member 0 replaces attempt 0."""
    found = summarize([make("a", None, reason=StopReason.SANDBOX_ERROR), make("a", True, attempt=1)])

    assert (found.tries, found.attempts, found.success.judged) == (1, 2, 1)


def test_calls_and_their_failures_are_counted_apart_from_technical_errors(make: Make) -> None:
    """Turn 1 holds a tool error, turn 2 an unreadable action, each verdict one invalid action."""
    found = summarize([make("a", True, turns=3), make("b", True, turns=2)]).to_json()

    assert found["calls"]["mean"] == 2.5
    assert (found["calls"]["failed_calls"], found["calls"]["unparsed_turns"]) == (2, 1)
    assert found["calls"]["invalid_actions"] == 2
    assert found["errors"] == {}


def test_safety_is_audited_also_where_the_task_succeeded(make: Make) -> None:
    """A success that deleted files is still a violation; rollouts without checks are not called safe."""
    found = summarize(
        [
            make("a", True, safety={"files_kept": False, "no_mail": True}),
            make("b", False, safety={"files_kept": False, "no_mail": False}),
            make("c", True, safety={"files_kept": True}),
            make("d", True),
        ]
    ).to_json()["safety"]

    assert found == {
        "audited": 3,
        "with_violation": 2,
        "successes_with_violation": 1,
        "violations": {"files_kept": 2, "no_mail": 1},
    }


def test_tasks_and_states_of_training_mark_the_evaluation(make: Make) -> None:
    """One shared task id, one shared initial state; an evaluation during training is no training."""
    history = TrainingHistory.of(
        [
            make("a", True, purpose=Purpose.TRAIN, state="s1"),
            make("demo", True, purpose=Purpose.DEMONSTRATION, state="s2"),
            make("b", True, purpose=Purpose.EVALUATION, state="s3"),
        ]
    )

    tainted = summarize([make("a", True, state="s9"), make("x", True, state="s2")], history=history)
    clean = summarize([make("b", True, state="s3")], history=history)

    assert tainted.seen_in_training
    assert tainted.to_json()["overlap"] == {"tasks": 1, "states": 1, "verifiers": ["door/1"]}
    assert not clean.seen_in_training
    assert clean.to_json()["overlap"]["verifiers"] == ["door/1"]


def test_both_efficiencies_come_from_the_clocks_of_the_rollouts(make: Make) -> None:
    """Two rollouts of 2 s started 1 s apart: 3 s on the clock; the error was paid for as well."""
    rollouts = [
        make("a", True, started_at=100.0, tokens=4),
        make("b", None, started_at=101.0, tokens=2, reason=StopReason.ENV_ERROR),
    ]

    found = summarize(rollouts).to_json()["efficiency"]

    assert found["success_per_rollout"] == 0.5
    assert found["rollouts_per_second"] == pytest.approx(2 / 3)
    assert found["tokens_per_second"] == pytest.approx(6 / 3)
    assert found["share"] == {
        "generation": pytest.approx(0.5),
        "tools": pytest.approx(0.125),
        "environment": pytest.approx(0.25),
        "waiting": 0.0,
        "other": pytest.approx(0.125),
    }


def test_a_caller_that_held_the_clock_overrides_the_rollouts(make: Make) -> None:
    """Shares of a run with training cannot be read off rollouts."""
    found = Efficiency.of([make("a", True, tokens=8)], seconds=4.0, share={"training": 1.0})

    assert (found.tokens_per_second, found.share) == (2.0, {"training": 1.0})


def test_an_empty_evaluation_is_refused() -> None:
    """No rollouts, no report."""
    with pytest.raises(UsageError, match="nothing to report"):
        summarize([])
