"""The loop end to end on the recurrent engine: what moves weights, what stops a run, what continues one."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kifu.errors import (
    AlteredError,
    ExperimentError,
    FailureRateError,
    FormatError,
    LockedError,
    NoSignalError,
    StorageError,
)
from kifu.monitor import RunFolder
from kifu.records import Origin, Purpose, StopReason
from kifu.records.audit import audit_run
from kifu.records.plan import read_plan
from kifu.records.reader import RunReader
from kifu.records.weights import WeightStore
from kifu.training.checkpoint import list_checkpoints, load_checkpoint
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded
from kifu.training.run import resume, train

Load = Callable[..., Loaded]
WORLDS = Path(__file__).parent / "odd_worlds.py"
GROUPS = ("credit.algorithm=grpo", "credit.options={}", "update.group_size=4", "update.prompts_per_step=2")
WILD = (
    'update.optimizer={ type = "adamw", learning_rate = 100.0, weight_decay = 0.5 }',
    "update.clip_norm=1000.0",
)


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def digests(run: Path) -> dict[int, str]:
    store = WeightStore(run / "weights", read_only=True)
    found = {version.version: version.digest for version in store.versions}
    store.close()
    return found


def is_sound(run: Path) -> bool:
    report = audit_run(run)
    return (report.problems, report.ledger_closed) == ((), True)


@pytest.fixture
def grpo(load: Load) -> Load:
    """GRPO without its recipe's options of a critic."""

    def make(*overrides: str) -> Loaded:
        return load("credit={ algorithm = 'grpo' }", *GROUPS[2:], "environment.on_truncation=terminal", *overrides)

    return make


class TestNoSignal:
    def test_groups_of_equal_rewards_move_nothing_at_any_learning_rate(self, grpo: Load, tmp_path: Path) -> None:
        run = tmp_path / "run"
        train(grpo(f"environment.name='{WORLDS}:Stingy'", "update.steps=3", *WILD), out=run, quiet=True)

        assert list(digests(run)) == [0]
        assert [line["applied"] for line in metrics(run)] == [False] * 3
        assert [line["ledger"]["degenerate"] for line in metrics(run)] == [8] * 3
        assert is_sound(run)

    def test_neither_momentum_nor_decay_moves_weights_after_a_step_that_learned(
        self, grpo: Load, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        train(
            grpo(f"environment.name='{WORLDS}:Early'", "update.steps=3", "record.checkpoint_every=1", *WILD),
            out=run,
            quiet=True,
        )

        assert [line["applied"] for line in metrics(run)] == [True, False, False]
        assert list(digests(run)) == [0, 1]
        states = [load_checkpoint(path)[1] for path in list_checkpoints(run / "checkpoints")]
        kept = WeightStore(run / "weights", read_only=True)
        for state in states:
            assert state["optimizer"]["applied_steps"] == 1
            for name, array in kept.get(1).tensors.items():
                assert np.array_equal(state["weights"][name], array)
        kept.close()

    def test_a_run_without_signal_stops_with_advice(self, grpo: Load, tmp_path: Path) -> None:
        run, loaded = (
            tmp_path / "run",
            grpo(f"environment.name='{WORLDS}:Stingy'", "update.steps=9", "update.patience=2"),
        )

        with pytest.raises(NoSignalError) as raised:
            train(loaded, out=run, quiet=True)

        assert "2 steps in a row without an informative group" in str(raised.value)
        for lever in ("group_size", "easier tasks", "demonstrations", "temperature", "constrain", "partial reward"):
            assert lever in str(raised.value)
        assert len(metrics(run)) == 2
        assert json.loads((run / "run.json").read_text())["status"].startswith("stopped: 2 steps in a row")

    @pytest.mark.parametrize(("limit", "told"), [(0, "Attempts went over credit.costs.calls.limit"), (99, None)])
    def test_a_constraint_that_nobody_keeps_stops_a_run_whose_verdicts_are_all_successes(
        self, grpo: Load, tmp_path: Path, limit: int, told: str | None
    ) -> None:
        costs = f"credit.costs.calls={{ where = 'constraint', limit = {limit} }}"
        loaded = grpo(f"environment.name='{WORLDS}:Generous'", "update.steps=3", "update.patience=2", costs)
        if told is None:
            train(loaded, out=tmp_path / "run", quiet=True)
            return
        with pytest.raises(NoSignalError, match=told):
            train(loaded, out=tmp_path / "run", quiet=True)


def test_an_evaluation_whose_attempts_break_says_so_at_once(
    load: Load, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FailureRateError):
        train(load(f"environment.name='{WORLDS}:Burnt'"), out=tmp_path / "run")
    told = capfd.readouterr().err
    first = "evaluation/s0/t00000/g0000/m000/a0: env_error: key_door: reset raised RuntimeError: the house is gone"
    assert "success no verdict" in told
    assert f"ended in an error and count as nothing. First: {first} (odd_worlds.py, line " in told


def test_a_run_whose_world_keeps_breaking_stops_and_keeps_the_record(load: Load, tmp_path: Path) -> None:
    run = tmp_path / "run"

    with pytest.raises(FailureRateError, match="2 of 4 attempts ended in an infrastructure error") as raised:
        train(load(f"environment.name='{WORLDS}:Brittle'"), out=run, quiet=True)

    assert raised.value.exit_code == 3
    assert "the room is on fire" in str(raised.value)
    found = [item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.TRAIN]
    assert sorted(item.outcome.reason is StopReason.ENV_ERROR for item in found) == [False, False, True, True]
    assert all(item.reward is None for item in found if item.outcome.infra_error)


def test_failures_below_the_limit_are_left_out_and_the_run_goes_on(load: Load, tmp_path: Path) -> None:
    run = tmp_path / "run"

    train(load(f"environment.name='{WORLDS}:Brittle'", "environment.failure_rate_limit=0.5"), out=run, quiet=True)

    for line in metrics(run):
        assert (line["ledger"]["infra_error"], line["ledger"]["trained"]) == (2, 2)
    assert is_sound(run)


def test_collection_ahead_trains_on_older_versions_within_the_limit(load: Load, tmp_path: Path) -> None:
    run = tmp_path / "run"

    train(load("update.steps=5", "update.max_age=2"), out=run, quiet=True)

    ages = []
    started = {line.step: line.version for line in read_plan(run)}
    for item in RunReader(run).trajectories():
        if item.key.purpose is Purpose.TRAIN:
            sampled = [span.policy_version for span in item.tapes[0].spans if span.policy_version is not None]
            ages.append(started[item.key.step] - min(sampled))
    assert max(ages) in (1, 2), "steps were collected ahead"
    assert min(ages) >= 0
    ledgers = [line.ledger for line in read_plan(run) if line.ledger is not None]
    assert [ledger.is_closed for ledger in ledgers] == [True] * 6  # the last line enters the last evaluation
    assert ledgers[0].closing.attempts == 8
    assert ledgers[-1].closing.attempts == 0
    assert is_sound(run)


class TestWarmStart:
    WARM = (
        'update.warm_start={ type = "demonstrations", steps = 2, traces_per_step = 4, noise = 0.0, '
        'optimizer = { type = "adamw", learning_rate = 3e-3 } }'
    )

    def test_stages_follow_each_other_and_versions_go_on(self, load: Load, tmp_path: Path) -> None:
        run = tmp_path / "run"
        result = train(load(self.WARM), out=run, quiet=True)

        assert [line["stage"] for line in metrics(run)] == ["warm start"] * 2 + ["train"] * 2
        assert (result.steps, result.version, list(digests(run))) == (4, 4, [0, 1, 2, 3, 4])
        assert is_sound(run)
        records = list(RunReader(run).trajectories())
        shown = [item for item in records if item.key.purpose is Purpose.DEMONSTRATION]
        assert [item.key.step for item in shown] == [0] * 4 + [1] * 4
        assert {item.task.split for item in shown} == {"demonstration"}
        assert len({item.task.id for item in shown}) == 8
        assert all(item.sampled_tokens == 0 and item.reward == 1.0 for item in shown)
        for line in read_plan(run)[:2]:
            tokens = {item.id: item for item in shown}
            assert [row.tokens for row in line.rows] == [
                sum(len(span) for span in tokens[row.trajectory].tapes[0].spans if span.origin is Origin.DEMONSTRATION)
                for row in line.rows
            ]
        trained = [item for item in records if item.key.purpose is Purpose.TRAIN]
        versions = {item.key.step: {span.policy_version for span in item.tapes[0].spans} - {None} for item in trained}
        assert versions == {2: {2}, 3: {3}}

    def test_imitation_raises_the_likelihood_of_what_was_shown(self, load: Load, tmp_path: Path) -> None:
        run = tmp_path / "run"
        train(
            load(self.WARM.replace("steps = 2", "steps = 12").replace("3e-3", "3e-2"), "update.steps=1"),
            out=run,
            quiet=True,
        )

        losses = [line["loss"] for line in metrics(run) if line["stage"] == "warm start"]
        assert losses[-1] < 0.5 * losses[0]

    def test_a_world_without_a_demonstrator_is_told(self, load: Load, tmp_path: Path) -> None:
        (tmp_path / "mute.py").write_text(
            "from kifu.envs.suites.key_door import KeyDoor\n"
            "class Mute(KeyDoor):\n"
            "    @classmethod\n"
            "    def demonstrate(cls, task, *, seed=0, noise=0.0):\n"
            "        raise NotImplementedError('Mute has no demonstrator')\n"
        )
        with pytest.raises(ExperimentError, match="has no demonstrator"):
            train(load(self.WARM, f"environment.name='{tmp_path / 'mute.py'}:Mute'"), out=tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()


class TestGoingOn:
    def test_a_run_may_start_from_the_last_version_of_another(self, load: Load, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        train(load(), out=first, quiet=True)
        train(load(f"policy.from='{first}'", "update.optimizer.learning_rate=1e-4"), out=second, quiet=True)

        assert digests(second)[0] == digests(first)[2]
        assert list(digests(second)) == [0, 1, 2]

    def test_the_protocol_names_the_weights_a_run_starts_from_and_not_their_place(
        self, load: Load, tmp_path: Path
    ) -> None:
        """The same run under two paths is one start; another run's weights, or none, are other experiments."""
        first, other, moved = tmp_path / "first", tmp_path / "other", tmp_path / "moved"
        train(load(), out=first, quiet=True)
        train(load(), out=other, seed=1, quiet=True)
        shutil.copytree(first, moved)

        hashes = [
            prepare(load() if path is None else load(f"policy.from='{path}'")).protocol.hash
            for path in (first, moved, other, None)
        ]

        assert hashes[0] == hashes[1]
        assert len(set(hashes)) == 3

    def test_a_run_goes_on_when_the_one_it_started_from_is_gone(self, load: Load, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        train(load(), out=first, quiet=True)
        done = train(load(f"policy.from='{first}'"), out=second, quiet=True)
        shutil.rmtree(first)

        assert resume(second, quiet=True).steps == done.steps

    def test_a_start_that_was_made_anew_is_refused(self, load: Load, tmp_path: Path) -> None:
        """A run killed before its first publish goes on with the weights its protocol names, or not at all."""
        first, second = tmp_path / "first", tmp_path / "second"
        train(load(), out=first, quiet=True)
        train(load(f"policy.from='{first}'"), out=second, quiet=True)
        for name in ("weights", "checkpoints", "records", "wal"):
            shutil.rmtree(second / name)
            (second / name).mkdir()
        for name in ("plan.jsonl", "metrics.jsonl"):
            (second / name).unlink()
        folder = RunFolder(root=second)
        folder.write_facts({name: value for name, value in folder.facts().items() if not name.endswith("head")})
        shutil.rmtree(first)
        train(load(), out=first, seed=1, quiet=True)

        with pytest.raises(AlteredError, match=r"policy\.from: .*has no version"):
            resume(second, quiet=True)

    def test_a_run_that_published_nothing_cannot_be_started_from(self, load: Load, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="no run here"):
            train(load(f"policy.from='{tmp_path / 'absent'}'"), out=tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()

    def test_the_seconds_of_tools_stand_apart_from_those_of_the_rest_of_the_environment(
        self, load: Load, tmp_path: Path
    ) -> None:
        """As the records say: the latencies of calls, and what remains of the environment's time."""
        train(load(), out=tmp_path / "run", quiet=True)
        records = [item for item in RunReader(tmp_path / "run").trajectories() if item.key.purpose is Purpose.TRAIN]

        for step, line in enumerate(metrics(tmp_path / "run")):
            items = [item for item in records if item.key.step == step]
            tools = sum(result.latency_s for item in items for turn in item.turns for result in turn.results)
            environment = sum(item.costs.environment_s for item in items)
            assert line["time/tools_s"] == pytest.approx(tools)
            assert line["time/tools_s"] > 0
            assert line["time/environment_s"] == pytest.approx(environment - tools)

    def test_a_finished_run_resumes_to_itself(self, load: Load, tmp_path: Path) -> None:
        run = tmp_path / "run"
        done = train(load(), out=run, quiet=True)
        before = {path: path.read_bytes() for path in sorted((run / "records").iterdir())}

        again = resume(run, quiet=True)

        assert (again.steps, again.version) == (done.steps, done.version)
        assert {path: path.read_bytes() for path in sorted((run / "records").iterdir())} == before

    def test_another_seed_is_another_run_of_the_same_protocol(self, load: Load, tmp_path: Path) -> None:
        for seed in (0, 1):
            train(load(), out=tmp_path / str(seed), seed=seed, quiet=True)
        one, two = (json.loads((tmp_path / str(seed) / "run.json").read_text()) for seed in (0, 1))

        assert one["protocol"] == two["protocol"]
        assert digests(tmp_path / "0") != digests(tmp_path / "1")

    def test_a_folder_that_holds_a_run_is_not_written_over(self, load: Load, tmp_path: Path) -> None:
        train(load("update.steps=1"), out=tmp_path / "run", quiet=True)
        with pytest.raises(StorageError, match="already holds a run"):
            train(load(), out=tmp_path / "run", quiet=True)

    def test_a_second_process_is_told_who_writes(self, load: Load, tmp_path: Path) -> None:
        run = tmp_path / "run"
        train(load("update.steps=1"), out=run, quiet=True)
        hold = "import sys; from pathlib import Path; from kifu.records.store import RunLock; "
        hold += "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", hold, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(LockedError, match=f"process {other.pid} is writing this run") as raised:
                resume(run, quiet=True)
            assert raised.value.exit_code == 4
            other.communicate()
        assert is_sound(run)

    def test_a_run_of_a_newer_kifu_is_left_alone(self, load: Load, tmp_path: Path) -> None:
        run = tmp_path / "run"
        train(load("update.steps=1"), out=run, quiet=True)
        facts = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**facts, "format": 99}))

        with pytest.raises(FormatError, match=r"run\.json: format 99, this kifu reads up to 2"):
            resume(run, quiet=True)

    def test_a_run_of_another_protocol_is_not_gone_on_with(self, load: Load, tmp_path: Path) -> None:
        run = tmp_path / "run"
        train(load("update.steps=1"), out=run, quiet=True)
        facts = RunFolder(root=run).facts()
        facts["experiment"]["credit"]["gamma"] = 0.5
        RunFolder(root=run).write_facts(facts)

        with pytest.raises(ExperimentError, match=r"when the run began: credit\.gamma is 0\.5, was 0\.99\. Go on"):
            resume(run, quiet=True)


class TestImpossible:
    """Combinations that no run could mean are refused before anything is written."""

    @pytest.mark.parametrize(
        ("overrides", "told"),
        [
            (("credit={ algorithm = 'grpo' }",), ["`grpo` compares attempts", "at least 2, found 1"]),
            (("credit={ algorithm = 'sft' }",), ["`sft` trains on demonstrations", "update.warm_start"]),
            (("credit={ algorithm = 'gripo' }",), ["credit.algorithm: no algorithm `gripo`"]),
            (("environment.name=calc_tools",), ["`recurrent` reads symbols", "engine = `hf`"]),
            (("environment.name=key_dor",), ["no environment `key_dor`", "did you mean `key_door`?"]),
            (("environment.options={ colour = 3 }",), ["environment.options do not fit `KeyDoor`", "colour"]),
            (("environment.splits.held_out='seed 0..'",), ["share seeds"]),
            (("policy.hidden=17",), ["policy.hidden", "multiple of 16", "found 17"]),
        ],
    )
    def test_it_is_told_and_nothing_is_left(
        self, load: Load, tmp_path: Path, overrides: tuple[str, ...], told: list[str]
    ) -> None:
        with pytest.raises(Exception) as raised:  # noqa: PT011 (the kind is compared below)
            train(load(*overrides), out=tmp_path / "run", quiet=True)

        assert getattr(raised.value, "exit_code", None) == 2, repr(raised.value)
        for part in told:
            assert part in str(raised.value)
        assert not (tmp_path / "run").exists()

    def test_a_critic_is_asked_of_an_engine_that_has_one(self, load: Load, tmp_path: Path) -> None:
        with pytest.raises(ExperimentError, match="needs a critic, and the engine `hf` has none"):
            train(
                load("environment.name=key_door_text", "policy={ engine = 'hf', model = 'tiny' }"),
                out=tmp_path / "run",
                quiet=True,
            )

    @pytest.mark.parametrize("method", ["grpo", "rloo", "gigpo", "reinforce", "dapo", "rft"])
    def test_a_cut_is_not_worth_what_an_untrained_critic_says(self, load: Load, tmp_path: Path, method: str) -> None:
        refused = "environment.on_truncation = `bootstrap` takes V"
        chosen = (f"credit={{ algorithm = '{method}' }}", *GROUPS[2:])
        with pytest.raises(ExperimentError, match=refused) as raised:
            train(load(*chosen, "environment.on_truncation=bootstrap"), out=tmp_path / "run", quiet=True)
        assert f"`{method}` trains none here" in str(raised.value)
        assert not (tmp_path / "run").exists()
        for treatment in ("exclude", "terminal"):
            prepare(load(*chosen, f"environment.on_truncation={treatment}"))

    def test_a_critic_without_a_coefficient_learns_nothing(self, load: Load) -> None:
        with pytest.raises(ExperimentError, match="`ppo` trains none here"):
            prepare(load("credit={ algorithm = 'ppo', options = { value_coefficient = 0.0 } }"))

    @pytest.mark.parametrize("method", ["actor_critic", "ppo"])
    def test_a_cut_is_bootstrapped_where_a_critic_learns_or_no_reward_is_read(self, load: Load, method: str) -> None:
        warm = (
            "update.warm_start={ type = 'demonstrations', steps = 1, traces_per_step = 2, noise = 0.0, "
            "optimizer = { type = 'adamw', learning_rate = 0.01 } }"
        )
        found = prepare(load(f"credit={{ algorithm = '{method}' }}", warm, "environment.on_truncation=bootstrap"))
        assert [stage.method for stage in found.stages] == ["sft", method]
