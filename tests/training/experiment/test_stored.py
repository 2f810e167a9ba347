"""Learning from the records of finished runs: what is dealt out, what is refused, what the books say."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kifu.errors import ExperimentError, InterruptedRun, StorageError
from kifu.records import Group, Purpose, TaskRef, Trajectory
from kifu.records.audit import audit_run
from kifu.records.plan import read_plan
from kifu.records.reader import RunReader
from kifu.training.experiment.credit_layers import Fit
from kifu.training.experiment.reading import Loaded
from kifu.training.experiment.stored import StoredGroups
from kifu.training.inspection.audit import audit
from kifu.training.inspection.explain import explain_step
from kifu.training.observe import Observer
from kifu.training.run import resume, train
from kifu.training.update.reward_model import fit_reward_model

Load = Callable[..., Loaded]
Make = Callable[..., Trajectory]
TERMINAL = "environment.on_truncation=terminal"


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("source") / "run"


@pytest.fixture
def source(place: Path, load: Load) -> Path:
    """A finished run of 4 groups of 16 random attempts, and 4 demonstrations before them; made once."""
    if not place.exists():
        warm = '{ type = "demonstrations", steps = 1, traces_per_step = 4, noise = 0.0, '
        warm += 'optimizer = { type = "adamw", learning_rate = 1e-9 } }'
        train(
            load(
                "credit={ algorithm = 'reinforce' }",
                TERMINAL,
                "update.steps=1",
                "update.prompts_per_step=4",
                "update.group_size=16",
                f"update.warm_start={warm}",
            ),
            out=place,
            quiet=True,
        )
    return place


@pytest.fixture
def offline(load: Load, source: Path) -> Callable[..., Loaded]:
    def make(method: str, *overrides: str, options: str = "{}", data: str = "") -> Loaded:
        return load(
            f"credit={{ algorithm = '{method}', options = {options} }}",
            TERMINAL,
            f"update.data={{ type = 'stored', runs = ['{source}']{data} }}",
            "update.steps=3",
            "update.prompts_per_step=2",
            *overrides,
        )

    return make


class TestDealing:
    @pytest.fixture
    def groups(self, make_record: Make) -> StoredGroups:
        found = [Group(task=TaskRef(id="t"), members=(make_record([1], group=at),)) for at in range(5)]
        return StoredGroups(groups=tuple(found), seed=7)

    def test_a_pass_holds_every_group_at_most_once_and_the_next_one_has_another_order(
        self, groups: StoredGroups
    ) -> None:
        steps = [[item.members[0].key.group for item in groups.at(step, prompts=2)] for step in range(8)]

        for first in range(0, 8, 2):
            assert max(Counter(steps[first] + steps[first + 1]).values()) == 1
        assert steps == [[item.members[0].key.group for item in groups.at(step, prompts=2)] for step in range(8)]
        assert len({tuple(steps[first] + steps[first + 1]) for first in range(0, 8, 2)}) > 1
        assert {group for step in steps for group in step} == set(range(5))

    def test_more_prompts_than_groups_give_all_of_them(self, groups: StoredGroups) -> None:
        assert [item.members[0].key.group for item in groups.at(3, prompts=9)] == [0, 1, 2, 3, 4]


def test_offline_learning_samples_nothing_but_evaluations_and_the_books_close(
    offline: Callable[..., Loaded], source: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(offline("offline_awr", options="{ temperature = 0.1 }"), out=run, quiet=True, seed=1)

    assert {item.key.purpose for item in RunReader(run).trajectories()} == {Purpose.EVALUATION}
    known = {item.id: item for item in RunReader(source).trajectories() if item.key.purpose is Purpose.TRAIN}
    lines = read_plan(run)
    assert [line.version for line in lines] == [0, 1, 2, 3]
    assert {row.trajectory for line in lines for row in line.rows} <= set(known)
    assert [len(line.rows) for line in lines] == [32, 32, 32, 0]
    uses = Counter(row.trajectory for line in lines for row in line.rows)
    assert all(row.times_used == 1 for row in lines[0].rows)
    assert max(row.times_used for row in lines[2].rows) == max(uses.values()) == 2
    trained = [line.ledger.closed for line in lines if line.ledger is not None]
    assert all(bucket == "evaluation" for closed in trained for bucket in closed)
    report = audit(run)
    assert (report.problems, report.ledger_closed) == ((), True)
    told = explain_step(run, 1)
    assert "the run's plan holds these numbers" in told["notes"]
    assert {item["id"] for group in told["groups"] for item in group["trajectories"]} == {
        row.trajectory for row in lines[1].rows
    }


def test_the_run_is_complete_by_itself(offline: Callable[..., Loaded], source: Path, tmp_path: Path) -> None:
    """The runs it learned from may go, and what they were is in the protocol whatever their paths."""
    moved, run = tmp_path / "moved", tmp_path / "run"
    shutil.copytree(source, moved)
    loaded = offline("offline_awr", f"update.data={{ type = 'stored', runs = ['{moved}'] }}")
    train(loaded, out=run, quiet=True, seed=1)
    train(offline("offline_awr"), out=tmp_path / "other", quiet=True, seed=1)
    shutil.rmtree(moved)

    again = resume(run, quiet=True)

    assert again.version == 3
    one, two = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("run", "other"))
    assert one["protocol"] == two["protocol"]


def test_a_stored_record_that_was_changed_is_found(offline: Callable[..., Loaded], tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(offline("offline_awr", "update.steps=1"), out=run, quiet=True, seed=1)
    [part, *_] = sorted((run / "stored" / "0" / "records").glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")

    report = audit_run(run)

    assert not report.ok
    assert report.problems[0].part == "stored/0/records"


def test_coverage_is_reported_for_every_evaluation(offline: Callable[..., Loaded], tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(offline("offline_awr", "evaluation.decoding=sampled", "evaluation.tasks=8"), out=run, quiet=True, seed=1)

    found = json.loads((run / "run.json").read_text())["coverage"]
    assert list(found) == ["0", "3"]
    for item in found.values():
        assert 0 < item["actions"] <= item["states"] <= 1
    assert metrics(run)[0]["evaluation/states_in_data"] == found["0"]["states"]


class TestImitation:
    def test_sft_clones_whoever_made_the_records(
        self, offline: Callable[..., Loaded], source: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        train(offline("sft"), out=run, quiet=True, seed=1)

        rows = [row for line in read_plan(run) for row in line.rows]
        known = {item.id: item for item in RunReader(source).trajectories()}
        assert {known[row.trajectory].key.purpose for row in rows} == {Purpose.TRAIN}
        assert {known[row.trajectory].reward for row in rows} == {0.0, 1.0}
        assert {part.advantage for row in rows for part in row.runs} == {1.0}

    def test_only_successes_or_only_demonstrations(
        self, offline: Callable[..., Loaded], source: Path, tmp_path: Path
    ) -> None:
        known = {item.id: item for item in RunReader(source).trajectories()}
        train(offline("sft", data=", outcome = 'success'"), out=tmp_path / "one", quiet=True, seed=1)
        train(offline("sft", data=", records = 'demonstration'"), out=tmp_path / "two", quiet=True, seed=1)

        one, two = (
            {row.trajectory for line in read_plan(tmp_path / name) for row in line.rows} for name in ("one", "two")
        )
        assert one
        assert {known[name].reward for name in one} == {1.0}
        assert {known[name].key.purpose for name in two} == {Purpose.DEMONSTRATION}
        assert audit_run(tmp_path / "two").ok


class TestRefused:
    @pytest.mark.parametrize(
        ("method", "data", "told"),
        [
            ("grpo", "", "learns from its own rollouts, and update.data names other records"),
            ("offline_awr", ", records = 'demonstration', outcome = 'failure'", "update.data.outcome"),
        ],
    )
    def test_what_cannot_be_meant(
        self, offline: Callable[..., Loaded], tmp_path: Path, method: str, data: str, told: str
    ) -> None:
        with pytest.raises(ExperimentError, match=told):
            train(offline(method, data=data), out=tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()

    def test_an_offline_method_without_records(self, load: Load, tmp_path: Path) -> None:
        with pytest.raises(
            ExperimentError,
            match=r"learns from records of finished runs or of an earlier stage; name them: update\.data",
        ):
            train(load("credit={ algorithm = 'offline_awr' }", TERMINAL), out=tmp_path / "run", quiet=True)

    def test_a_folder_without_a_run(self, offline: Callable[..., Loaded], tmp_path: Path) -> None:
        with pytest.raises(Exception, match="no run here"):
            train(
                offline("sft", f"update.data={{ type = 'stored', runs = ['{tmp_path / 'none'}'] }}"),
                out=tmp_path / "run",
                quiet=True,
            )

    def test_one_run_twice(self, offline: Callable[..., Loaded], source: Path, tmp_path: Path) -> None:
        with pytest.raises(ExperimentError, match="stands in two of them"):
            train(
                offline("sft", f"update.data={{ type = 'stored', runs = ['{source}', '{source}'] }}"),
                out=tmp_path / "run",
                quiet=True,
            )

    def test_records_of_other_tokens(self, offline: Callable[..., Loaded], tmp_path: Path) -> None:
        (tmp_path / "more.py").write_text(
            "from kifu.envs.suites.key_door import KeyDoor\n"
            "class More(KeyDoor):\n"
            "    vocabulary = (*KeyDoor.vocabulary, 'one_more')\n"
        )
        with pytest.raises(ExperimentError, match="was recorded with tokenizer"):
            train(offline("sft", f"environment.name='{tmp_path / 'more.py'}:More'"), out=tmp_path / "run", quiet=True)

    @pytest.mark.parametrize(
        ("line", "told"),
        [("id = 'other_door'", "environment key_door/1.*other_door/1"), ("version = '2'", "key_door/1.*key_door/2")],
    )
    def test_records_of_another_world(
        self, offline: Callable[..., Loaded], tmp_path: Path, line: str, told: str
    ) -> None:
        (tmp_path / "other.py").write_text(
            f"from kifu.envs.suites.key_door import KeyDoor\nclass Other(KeyDoor):\n    {line}\n"
        )
        with pytest.raises(ExperimentError, match=told):
            train(offline("sft", f"environment.name='{tmp_path / 'other.py'}:Other'"), out=tmp_path / "run", quiet=True)

    @pytest.mark.parametrize("what", ["altered", "cut off", "newer", "missing part"])
    def test_a_folder_that_cannot_be_trusted(
        self, offline: Callable[..., Loaded], source: Path, tmp_path: Path, what: str
    ) -> None:
        """Exit code 4, the file is named, and no run is begun."""
        bad = Path(shutil.copytree(source, tmp_path / "bad"))
        [part, *_] = sorted((bad / "records").glob("part-*.parquet"))
        manifest = bad / "records" / "manifest.jsonl"
        if what == "altered":
            part.write_bytes(part.read_bytes()[:-1] + b"?")
        elif what == "cut off":
            manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:-1]))
        elif what == "newer":
            manifest.write_text(manifest.read_text().replace('"format":1', '"format":2'))
        else:
            part.unlink()
        with pytest.raises(StorageError) as raised:
            train(
                offline("sft", f"update.data={{ type = 'stored', runs = ['{bad}'] }}"), out=tmp_path / "run", quiet=True
            )
        assert raised.value.exit_code == 4
        assert str(bad) in str(raised.value)
        assert not (tmp_path / "run").exists()


class TestPreferences:
    def test_dpo_prefers_what_earned_more_relative_to_where_it_began(
        self, offline: Callable[..., Loaded], source: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        train(
            offline(
                "dpo",
                "update.steps=6",
                "update.prompts_per_step=4",
                "update.optimizer.learning_rate=0.02",
                options="{ beta = 1.0 }",
            ),
            out=run,
            quiet=True,
            seed=1,
        )

        known = {item.id: item for item in RunReader(source).trajectories()}
        lines = [line for line in read_plan(run) if line.rows]
        for line in lines:
            sides: dict[int, list[float]] = {}
            for row in line.rows:
                assert row.pair is not None
                sides.setdefault(row.pair, []).append(row.runs[0].advantage * (known[row.trajectory].reward or 0.0))
                assert len(row.reference) == row.tokens
            assert all(sorted(both) == [0.0, 1.0] for both in sides.values()), "1 times reward 1, -1 times reward 0"
            for names in line.micro_batches:
                pairs = [row.pair for row in line.rows if row.trajectory in names]
                assert all(pairs.count(pair) == 2 for pair in pairs)
        first = {row.trajectory: row.reference for row in lines[0].rows}
        again = {row.trajectory: row.reference for row in lines[-1].rows}
        shared = set(first) & set(again)
        assert shared
        for name in shared:
            assert again[name] == pytest.approx(first[name], abs=1e-6), "the reference stays where it was"
        seen = metrics(run)
        assert seen[0]["objective/margin_sum"] == pytest.approx(0.0, abs=1e-4)
        assert seen[0]["objective/loss_preference"] == pytest.approx(0.693147, abs=1e-4)
        assert seen[-1]["objective/margin_sum"] > 1.0
        told = explain_step(run, 0)
        assert "the run's plan holds these numbers" in told["notes"]
        assert audit(run).problems == ()

    def test_agentic_dpo_trains_single_actions(self, offline: Callable[..., Loaded], tmp_path: Path) -> None:
        run = tmp_path / "run"
        options = "{ negatives = 'recorded' }"
        train(offline("agentic_dpo", "update.prompts_per_step=4", options=options), out=run, quiet=True, seed=1)

        rows = [row for line in read_plan(run) for row in line.rows]
        assert {sum(1 for part in row.runs if part.weight) for row in rows} == {1}
        assert metrics(run)[0]["objective/pairs"] > 0
        assert audit_run(run).problems == ()


class TestRewardModel:
    """RLHF in small: a reward model from stored preferences, PPO on it, the verdict only looked at."""

    SETTING = ("environment.on_truncation=terminal", "update.prompts_per_step=8", "update.steps=4")

    def recipe(self, load: Load, source: Path, *overrides: str) -> Loaded:
        model = f"{{ runs = ['{source}'], steps = 60, hidden = 16 }}"
        return load(f"credit={{ algorithm = 'rlhf_ppo', reward_model = {model} }}", *self.SETTING, *overrides)

    def test_the_policy_is_paid_by_the_model_and_the_plan_says_how_much(
        self, load: Load, source: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        train(self.recipe(load, source), out=run, quiet=True, seed=1)

        facts = json.loads((run / "run.json").read_text())["reward_model"]
        assert facts["pairs"] > 2
        assert facts["accuracy"] is None or facts["accuracy"] >= 0.5
        rows = [row for line in read_plan(run) for row in line.rows]
        known = {item.id: item for item in RunReader(run).trajectories()}
        assert all(row.model_score is not None and len(row.reference) == row.tokens for row in rows)
        by_verdict = {
            reward: [row.model_score or 0.0 for row in rows if known[row.trajectory].reward == reward]
            for reward in (0.0, 1.0)
        }
        assert by_verdict[0.0]
        if by_verdict[1.0]:
            assert np.mean(by_verdict[1.0]) > np.mean(by_verdict[0.0])
        report = audit(run)
        assert (report.problems, report.ledger_closed) == ((), True)

    def test_an_interrupted_run_fits_the_same_model(
        self, load: Load, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        train(self.recipe(load, source), out=tmp_path / "one", quiet=True, seed=1)
        inner = Observer.end

        def stop(observer: Observer, seen: Any) -> None:  # noqa: ANN401 (passed on)
            inner(observer, seen)
            if seen.step == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(Observer, "end", stop)
        with pytest.raises((KeyboardInterrupt, InterruptedRun)):
            train(self.recipe(load, source), out=tmp_path / "two", quiet=True, seed=1)
        monkeypatch.setattr(Observer, "end", inner)
        resume(tmp_path / "two", quiet=True)

        assert [line.rows for line in read_plan(tmp_path / "two")] == [
            line.rows for line in read_plan(tmp_path / "one")
        ]

    def test_records_that_prefer_nothing_and_methods_that_do_not_look_are_refused(
        self, load: Load, source: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ExperimentError, match=r"does not look at credit\.reward_model"):
            train(self.recipe(load, source, "credit.algorithm=ppo"), out=tmp_path / "run", quiet=True)
        with pytest.raises(ExperimentError, match="learns from a reward model; name the runs"):
            train(load("credit={ algorithm = 'rlhf_ppo' }", *self.SETTING), out=tmp_path / "run", quiet=True)
        with pytest.raises(ExperimentError, match="nothing is preferred to anything"):
            fit_reward_model([], Fit(), seed=0)
