"""Experiments of several stages: what each begins with, what it leaves behind, and what is refused."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kifu.errors import ExperimentError, InterruptedRun, NoSignalError
from kifu.records import Purpose, Trajectory
from kifu.records.ledger import Bucket
from kifu.records.plan import PlanLine, read_plan
from kifu.records.reader import RunReader
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded, load_experiment, parse_experiment
from kifu.training.inspection.audit import audit
from kifu.training.inspection.explain import explain_step
from kifu.training.observe import Observer
from kifu.training.preflight import preflight
from kifu.training.run import reopen, resume, train

RECIPES = Path(__file__).parents[3] / "recipes"
ADAM = {"type": "adamw", "learning_rate": 1e-2}
UPDATE: dict[str, Any] = {"steps": 2, "prompts_per_step": 2, "group_size": 4, "optimizer": ADAM}
RL: dict[str, Any] = {"type": "train", "credit": {"algorithm": "reinforce", "gamma": 1.0}, "update": UPDATE}
SHOWN: dict[str, Any] = {
    "type": "demonstrations", "steps": 1, "traces_per_step": 4, "noise": 0.0, "optimizer": ADAM
}  # fmt: skip
RANKED: dict[str, Any] = {
    "type": "ranking", "prompts_per_step": 8, "group_size": 8, "fit": {"steps": 5, "hidden": 8}
}  # fmt: skip
PPO: dict[str, Any] = {
    "type": "train",
    "credit": {
        "algorithm": "rlhf_ppo",
        "options": {"epochs": 2},
        "gamma": 1.0,
        "reward_model": {"stage": "ranks"},
    },
    "update": {**UPDATE, "steps": 1, "group_size": 1},
}


def staged(stages: dict[str, Any], **more: Any) -> Loaded:  # noqa: ANN401 (tables of an experiment)
    table = {
        "kifu": 1,
        "environment": {"name": "key_door", "decision_model": "tool call, POMDP", "on_truncation": "terminal"},
        "policy": {"engine": "recurrent", "hidden": 16},
        "stages": stages,
        "evaluation": {"tasks": 2},
        "machine": {"threads": 1},
        **more,
    }
    return parse_experiment(table, name="staged", folder=Path.cwd(), where="staged.toml")


def versions(run: Path) -> list[str]:
    return [json.loads(line)["weights"] for line in (run / "weights" / "versions.jsonl").read_text().splitlines()]


def lines_of(run: Path, steps: Sequence[int]) -> list[PlanLine]:
    return [line for line in read_plan(run) if line.step in steps]


@pytest.fixture(scope="module")
def instructgpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("instructgpt") / "run"
    overrides = ["machine.threads=1", "evaluation.tasks=2"]
    train(
        load_experiment(RECIPES / "instructgpt_like.toml", profile="check", overrides=overrides), out=place, quiet=True
    )
    return place


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("starts") / "run"
    one = {**UPDATE, "steps": 1}
    stages = {
        "zero": RL,
        "cold": {**SHOWN, "from": "base"},
        "more": {**RL, "update": one},
        "again": {**RL, "from": "zero", "update": one},
        "same": {**RL, "from": "again", "update": one},
    }
    train(staged(stages), out=place, quiet=True)
    return place


class TestInstructGpt:
    """Imitation, a reward model from rankings, PPO on it: one file, in the mode that takes seconds."""

    def test_every_stage_stands_in_the_run_with_its_card(self, instructgpt: Path) -> None:
        found = json.loads((instructgpt / "run.json").read_text())["stages"]

        assert [(item["name"], item["method"], item["first"], item["steps"]) for item in found] == [
            ("imitation", "sft", 0, 2),
            ("rankings", "ranking", 2, 1),
            ("ppo", "rlhf_ppo", 3, 2),
        ]
        assert [item["card"]["name"] for item in found] == [
            "Supervised fine-tuning (behaviour cloning)",
            "Reward model (Bradley-Terry)",
            "RLHF: reward model and PPO",
        ]

    def test_rankings_are_the_worlds_and_move_no_weight(self, instructgpt: Path) -> None:
        [line] = lines_of(instructgpt, [2])
        ranked = [
            item
            for item in RunReader(instructgpt).trajectories()
            if item.key.step == 2 and item.key.purpose is Purpose.TRAIN
        ]

        assert line.rows == ()
        assert len(ranked) == 64
        by_task: dict[int, list[float]] = {}
        for item in ranked:
            by_task.setdefault(item.key.group, []).append(item.reward or 0.0)
        pairs = sum(min(rewards.count(1.0), rewards.count(0.0)) for rewards in by_task.values())
        differing = sum(len(rewards) for rewards in by_task.values() if len(set(rewards)) > 1)
        assert 0 < differing < 64  # groups of equal verdicts rank nothing, and are booked so
        assert Counter(line.buckets.values()) == {
            Bucket.HELD_BACK: differing,
            Bucket.DEGENERATE: 64 - differing,
            Bucket.EVALUATION: 2,
        }
        metrics = [json.loads(line) for line in (instructgpt / "metrics.jsonl").read_text().splitlines()]
        [row] = [row for row in metrics if row["step"] == 2]
        assert row["informative_groups"] == sum(len(set(rewards)) > 1 for rewards in by_task.values())
        told = explain_step(instructgpt, 2)
        assert told["algorithm"] == "ranking"
        assert len(told["filtered"]) == 64
        facts = json.loads((instructgpt / "run.json").read_text())["reward_model"]
        assert facts["rankings/pairs"] + facts["rankings/held_out"] == pairs > 0

    def test_the_reference_is_the_imitating_policy(self, instructgpt: Path) -> None:
        """The first update of PPO is made by the policy it is anchored to: both log-probabilities agree."""
        first = lines_of(instructgpt, [3])[0]
        known = {item.id: item for item in RunReader(instructgpt).trajectories()}

        assert first.version == 2
        for row in first.rows:
            assert row.reference == pytest.approx(_sampled(known[row.trajectory]), abs=1e-5)
            assert row.model_score is not None

    def test_the_books_close_and_a_step_is_explained_by_its_own_stage(self, instructgpt: Path) -> None:
        report = audit(instructgpt)
        told = explain_step(instructgpt, 4)

        assert (report.problems, report.ledger_closed) == ((), True)
        assert told["algorithm"] == "rlhf_ppo"
        assert "the run's plan holds these numbers" in told["notes"]


def _sampled(record: Trajectory) -> list[float]:
    parts = [span.logprobs for tape in record.tapes for span in tape.spans if span.logprobs is not None]
    return [float(value) for part in parts for value in part]


def test_r1_in_one_file_has_five_stages_and_begins_anew_after_the_first(tmp_path: Path) -> None:
    overrides = ["machine.threads=1", "evaluation.tasks=1"]
    loaded = load_experiment(RECIPES / "r1_like.toml", profile="check", overrides=overrides)
    result = train(loaded, out=tmp_path / "run", quiet=True)

    stages = json.loads((tmp_path / "run" / "run.json").read_text())["stages"]
    assert [(item["name"], item["method"], item["from"]) for item in stages] == [
        ("zero", "grpo", None),
        ("cold_start", "sft", "base"),
        ("reasoning", "grpo", None),
        ("rejection_sampling", "rft", None),
        ("all_scenarios", "grpo", None),
    ]
    assert result.steps == 5
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in metrics] == [item["name"] for item in stages]
    report = audit(tmp_path / "run")
    assert (report.problems, report.ledger_closed) == ((), True)


class TestStartingPoints:
    def test_base_is_what_the_run_began_with_and_a_stage_is_what_it_ended_with(self, restarted: Path) -> None:
        found = versions(restarted)
        begins = {line.step: line.version for line in read_plan(restarted) if line.update == 0}

        assert found[begins[2]] == found[0]
        assert begins[2] == begins[1] + 2, "one number for the last update of `zero`, one for the base anew"
        assert found[begins[4]] == found[begins[2] - 1]
        assert found[begins[4]] != found[begins[4] - 1]
        assert found[begins[5]] == found[begins[5] - 1], "the stage just before ended with what is there"
        assert found[begins[3]] not in (found[0], found[begins[1]])

    def test_each_stage_is_evaluated_before_it_begins(self, restarted: Path) -> None:
        tried = sorted(
            {item.key.step for item in RunReader(restarted).trajectories() if item.key.purpose is Purpose.EVALUATION}
        )
        begins = {line.step: line.version for line in read_plan(restarted) if line.update == 0}
        assert tried == [0, begins[2] - 1, begins[3], begins[4] - 1, begins[5] - 1, len(versions(restarted)) - 1]


def _stopped_and_resumed(stages: dict[str, Any], after: int, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, interrupted at the end of a step, and go on."""
    inner = Observer.end

    def stop(observer: Observer, seen: Any) -> None:  # noqa: ANN401 (passed on)
        inner(observer, seen)
        if seen.step == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(Observer, "end", stop)
    with pytest.raises((KeyboardInterrupt, InterruptedRun)):
        train(staged(stages), out=out, quiet=True)
    monkeypatch.setattr(Observer, "end", inner)
    resume(out, quiet=True)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_stopped_at_any_boundary_it_goes_on_as_if_nothing_was(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untouched: Path
) -> None:
    _stopped_and_resumed(THREE, after, tmp_path / "run", monkeypatch)

    assert versions(tmp_path / "run") == versions(untouched)
    assert [line.rows for line in read_plan(tmp_path / "run")] == [line.rows for line in read_plan(untouched)]


THREE = {"shown": SHOWN, "ranks": RANKED, "ppo": PPO, "anew": {**RL, "from": "shown", "update": {**UPDATE, "steps": 1}}}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("untouched") / "run"
    train(staged(THREE), out=place, quiet=True)
    return place


def test_a_reopened_run_has_the_same_stages(untouched: Path) -> None:
    _, prepared = reopen(untouched)
    assert [(stage.name, stage.method, stage.first, stage.start) for stage in prepared.stages] == [
        ("shown", "sft", 0, None),
        ("ranks", "ranking", 1, None),
        ("ppo", "rlhf_ppo", 2, None),
        ("anew", "reinforce", 3, "shown"),
    ]


def test_a_change_of_an_early_stage_is_another_protocol() -> None:
    other = {**THREE, "ranks": {**RANKED, "group_size": 4}}
    assert prepare(staged(THREE)).protocol.hash != prepare(staged(other)).protocol.hash


def test_the_check_shows_each_stage_with_its_card() -> None:
    found = preflight(staged(THREE))
    assert [(item.name, item.steps, item.card.name) for item in found.stages] == [
        ("shown", 1, "Supervised fine-tuning (behaviour cloning)"),
        ("ranks", 1, "Reward model (Bradley-Terry)"),
        ("ppo", 1, "RLHF: reward model and PPO"),
        ("anew", 1, "REINFORCE"),
    ]
    assert found.run_s is not None
    assert found.step_s is not None
    assert json.loads(json.dumps(found.to_json()))["stages"][3]["from"] == "shown"


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a table beside the stages": ({"a": RL}, {"credit": {"algorithm": "grpo"}}, r"with \[stages\], credit and update"),
    "nothing trained at the end": ({"a": RL, "b": RANKED}, {}, "the last one must be of type `train`"),
    "an unknown type": ({"a": {**RL, "type": "tarin"}, "b": RL}, {}, r"stages\.a\.type: no choice `tarin`; did you"),
    "an unknown field": ({"a": {**RL, "form": "base"}}, {}, r"stages\.a\.form: unknown field; did you mean `from`"),
    "an unknown field of a learned reward": (
        {"ranks": RANKED, "ppo": {**PPO, "credit": {**PPO["credit"], "reward_model": {"stage": "ranks", "stpes": 3}}}},
        {},
        r"stages\.ppo\.credit\.reward_model\.stpes: unknown field; did you mean `steps`",
    ),
    "a later stage": ({"a": {**RL, "from": "b"}, "b": RL}, {}, r"stages\.a\.from: no earlier stage `b`"),
    "a warm start inside": (
        {"a": {**RL, "update": {**UPDATE, "warm_start": SHOWN}}},
        {},
        r"stages\.a\.update\.warm_start: with \[stages\], write a stage",
    ),
    "a model that nobody fitted": ({"shown": SHOWN, "ppo": PPO}, {}, r"no earlier stage `ranks` of type `ranking`"),
    "a model of another kind of stage": (
        {"ranks": SHOWN, "ppo": PPO}, {}, r"stages\.ppo\.credit\.reward_model\.stage: no earlier stage `ranks`"
    ),
    "a name that means something else": ({"base": RL}, {}, "`base` means the weights the run begins with"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("credit", "update", "told"),
    [
        ({"algorithm": "grop"}, {}, "credit.algorithm: no algorithm `grop`"),
        (
            {"algorithm": "grpo", "options": {"clip_low": 1.5}},
            {},
            "credit.options: algorithm `grpo`, option `clip_low`: found 1.5",
        ),
        ({"algorithm": "dpo"}, {}, "credit.algorithm = `dpo` learns from records"),
        ({"algorithm": "grpo"}, {"group_size": 1}, "credit.algorithm = `grpo` compares attempts"),
        ({"algorithm": "grpo", "components": {"x": 1.0}}, {}, "credit.components"),
        ({"algorithm": "rft", "costs": {"turns": {"where": "reward", "weight": 1.0}}}, {}, "credit.costs.turns"),
    ],
)
@pytest.mark.parametrize("place", ["first", "last"])
def test_whatever_is_wrong_in_one_of_several_stages_names_the_stage(
    credit: dict[str, Any], update: dict[str, Any], told: str, place: str
) -> None:
    wrong = {**RL, "credit": {"gamma": 1.0, **credit}, "update": {**UPDATE, **update}}
    stages = {"first": RL, "middle": SHOWN, "last": RL} | {place: wrong}
    with pytest.raises(ExperimentError) as raised:
        prepare(staged(stages))
    assert str(raised.value).startswith(f"stages.{place}: {told}")


@pytest.mark.parametrize("case", REFUSED)
def test_stages_that_cannot_be_meant_are_refused(case: str) -> None:
    stages, more, told = REFUSED[case]
    with pytest.raises(ExperimentError, match=told):
        prepare(staged(stages, **more))


# ---------------------------------------------------------------- records of an earlier stage


ATTEMPTS: dict[str, Any] = {"type": "collection", "prompts_per_step": 8, "group_size": 8}
DPO: dict[str, Any] = {
    "type": "train",
    "credit": {"algorithm": "dpo"},
    "update": {**UPDATE, "prompts_per_step": 4, "data": {"type": "stage", "stage": "attempts"}},
}
CLONED: dict[str, Any] = {
    "type": "train",
    "credit": {"algorithm": "sft"},
    "update": {**UPDATE, "prompts_per_step": 8, "data": {"type": "stage", "stage": "attempts", "outcome": "success"}},
}
LADDER = {"shown": SHOWN, "attempts": ATTEMPTS, "preferred": DPO, "cloned": CLONED, "after": RL}


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ladder") / "run"
    train(staged(LADDER), out=place, quiet=True)
    return place


class TestRecordsOfAnEarlierStage:
    """Imitation, attempts, preferences among them, imitation of the successful ones: one file."""

    def test_they_are_trained_on_later_and_moved_nothing_when_they_were_made(self, ladder: Path) -> None:
        made = {
            item.id: item
            for item in RunReader(ladder).trajectories()
            if item.key.step == 1 and item.key.purpose is Purpose.TRAIN
        }
        [collected] = lines_of(ladder, [1])

        assert len(made) == 64
        assert collected.rows == ()
        assert Counter(collected.buckets.values())[Bucket.HELD_BACK] == 64
        preferred, cloned = lines_of(ladder, [2, 3]), lines_of(ladder, [4, 5])
        assert all(line.rows for line in (*preferred, *cloned))
        assert {row.trajectory for line in (*preferred, *cloned) for row in line.rows} <= set(made)
        for line in preferred:
            sides: dict[int | None, list[float | None]] = {}
            for row in line.rows:
                sides.setdefault(row.pair, []).append(made[row.trajectory].reward)
            assert all(sorted(both, key=float) == [0.0, 1.0] for both in sides.values())  # type: ignore[arg-type]
        assert {made[row.trajectory].reward for line in cloned for row in line.rows} == {1.0}

    def test_nothing_is_sampled_while_they_are_learned_from(self, ladder: Path) -> None:
        sampled = {item.key.step for item in RunReader(ladder).trajectories() if item.key.purpose is Purpose.TRAIN}
        assert sampled == {1, 6, 7}

    def test_the_reference_of_dpo_is_the_policy_that_made_them(self, ladder: Path) -> None:
        known = {item.id: item for item in RunReader(ladder).trajectories()}
        rows = [row for line in lines_of(ladder, [2]) for row in line.rows]
        assert rows
        for row in rows:
            assert row.reference == pytest.approx(_sampled(known[row.trajectory]), abs=1e-5)

    def test_uses_are_counted_over_stages_and_the_books_close(self, ladder: Path) -> None:
        uses: Counter[str] = Counter()
        for line in read_plan(ladder):
            for row in line.rows:
                uses[row.trajectory] += 1
                assert row.times_used == uses[row.trajectory]
        assert max(uses.values()) > 1
        report = audit(ladder)
        assert (report.problems, report.ledger_closed) == ((), True)

    @pytest.mark.parametrize(("step", "method"), [(1, "collecting"), (2, "dpo"), (4, "sft"), (6, "reinforce")])
    def test_every_step_is_explained_by_its_own_stage(self, ladder: Path, step: int, method: str) -> None:
        told = explain_step(ladder, step)
        assert told["algorithm"] == method
        assert "the run's plan holds these numbers" in told["notes"]

    def test_the_run_says_where_the_data_came_from(self, ladder: Path) -> None:
        facts = json.loads((ladder / "run.json").read_text())
        assert {item["name"]: item.get("data") for item in facts["stages"]} == {
            "shown": None, "attempts": None, "preferred": "attempts", "cloned": "attempts", "after": None,
        }  # fmt: skip
        _, prepared = reopen(ladder)
        stages = {item["name"]: item for item in prepared.protocol.tables["update"]["stages"]}
        assert stages["cloned"]["update"]["data"] == {"type": "stage", "stage": "attempts", "outcome": "success"}
        assert [item.data for item in preflight(staged(LADDER), measure=False).stages] == [
            None, None, "attempts", "attempts", None,
        ]  # fmt: skip

    def test_coverage_is_told_from_the_stage_on_that_learns_from_them(self, ladder: Path) -> None:
        facts = json.loads((ladder / "run.json").read_text())
        begins = {line.step: line.version for line in read_plan(ladder) if line.update == 0}
        assert min(map(int, facts["coverage"])) == begins[2] > 0

    @pytest.mark.parametrize("after", [1, 2, 3, 4])
    def test_stopped_between_they_are_read_again(
        self, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ladder: Path
    ) -> None:
        _stopped_and_resumed(LADDER, after, tmp_path / "run", monkeypatch)

        assert versions(tmp_path / "run") == versions(ladder)
        assert [line.rows for line in read_plan(tmp_path / "run")] == [line.rows for line in read_plan(ladder)]

    def test_demonstrations_of_a_stage_are_data_too(self, tmp_path: Path) -> None:
        more = {**DPO, "credit": {"algorithm": "sft"}}
        more["update"] = {**UPDATE, "data": {"type": "stage", "stage": "shown"}}
        train(staged({"shown": SHOWN, "again": more, "after": RL}), out=tmp_path / "run", quiet=True)

        rows = [row for line in lines_of(tmp_path / "run", [1, 2]) for row in line.rows]
        assert {row.trajectory.split("/")[0] for row in rows} == {"demonstration"}
        assert max(row.times_used for row in rows) >= 2
        assert audit(tmp_path / "run").problems == ()

    def test_negatives_are_sampled_in_states_of_the_runs_own_demonstrations(self, tmp_path: Path) -> None:
        sampling = {
            "type": "train",
            "credit": {"algorithm": "agentic_dpo", "options": {"warm_up": 1, "round_steps": 2}},
            "update": {**UPDATE, "steps": 3, "data": {"type": "stage", "stage": "shown"}},
        }
        train(staged({"shown": {**SHOWN, "traces_per_step": 8}, "pairs": sampling}), out=tmp_path / "run", quiet=True)

        records = {item.id: item for item in RunReader(tmp_path / "run").trajectories()}
        made = [item for item in records.values() if item.key.purpose is Purpose.TRAIN]
        parents = {records[item.branch.parent].key.step for item in made if item.branch is not None}
        assert made
        assert (parents, {item.branch is None for item in made}) == ({0}, {False})
        assert audit(tmp_path / "run").problems == ()
        told = explain_step(tmp_path / "run", 3)
        assert "the run's plan holds these numbers" in told["notes"]

    def test_a_stage_without_a_success_ends_the_run_with_the_reason(self, tmp_path: Path) -> None:
        few = {"attempts": {**ATTEMPTS, "prompts_per_step": 1, "group_size": 1}, "cloned": CLONED, "after": RL}
        with pytest.raises(NoSignalError, match="stage `attempts` made no record of outcome `success`"):
            train(staged(few), out=tmp_path / "run", quiet=True)

    def test_preferences_among_demonstrations_end_the_run_with_the_reason(self, tmp_path: Path) -> None:
        """One trace a task, all of them right: no pair can be made, however long the stage is."""
        overrides = [
            *("machine.threads=1", "evaluation.tasks=2", 'stages.preference.update.data.stage="imitation"'),
            "stages.preference.update.patience=2",
        ]
        loaded = load_experiment(RECIPES / "dpo_like.toml", profile="check", overrides=overrides)
        with pytest.raises(NoSignalError, match="2 steps in a row in which `dpo` found nothing to learn in the stored"):
            train(loaded, out=tmp_path / "run", quiet=True)
        assert audit(tmp_path / "run").problems == ()

    def test_the_recipe_goes_from_imitation_to_preferences(self, tmp_path: Path) -> None:
        overrides = ["machine.threads=1", "evaluation.tasks=2"]
        loaded = load_experiment(RECIPES / "dpo_like.toml", profile="check", overrides=overrides)
        train(loaded, out=tmp_path / "run", quiet=True)

        trained = [line for line in lines_of(tmp_path / "run", [3, 4]) if line.rows]
        assert trained
        assert {row.trajectory.split("/")[2] for line in trained for row in line.rows} == {"t00002"}
        assert audit(tmp_path / "run").problems == ()


SOURCES: dict[str, tuple[dict[str, Any], str]] = {
    "a stage that is not there": (
        {"attempts": ATTEMPTS, "x": {**DPO, "update": {**DPO["update"], "data": {"type": "stage", "stage": "atempts"}}},
         "after": RL},
        r"stages\.x\.update\.data\.stage: no earlier stage `atempts`.*did you mean `attempts`",
    ),
    "a later stage": ({"x": DPO, "attempts": ATTEMPTS, "after": RL}, "there is none; add one of type `collection`"),
    "a stage without records of its own": (
        {"attempts": ATTEMPTS, "x": DPO,
         "y": {**DPO, "update": {**DPO["update"], "data": {"type": "stage", "stage": "x"}}}},
        "stage `x` learns from records itself and makes none",
    ),
    "a method that wants rollouts": (
        {"attempts": ATTEMPTS, "x": {**DPO, "credit": {"algorithm": "grpo", "gamma": 1.0}}},
        "learns from its own rollouts",
    ),
    "a misspelt field": (
        {"attempts": ATTEMPTS,
         "x": {**DPO, "update": {**DPO["update"], "data": {"type": "stage", "stage": "attempts", "outcom": "all"}}}},
        r"stages\.x\.update\.data\.outcom: unknown field; did you mean `outcome`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SOURCES)
def test_data_that_cannot_be_meant_is_refused(case: str) -> None:
    stages, told = SOURCES[case]
    with pytest.raises(ExperimentError, match=told):
        prepare(staged(stages))


def test_without_stages_there_is_none_to_learn_from() -> None:
    table: dict[str, Any] = {
        "kifu": 1,
        "environment": {"name": "key_door", "decision_model": "POMDP", "on_truncation": "terminal"},
        "policy": {"engine": "recurrent", "hidden": 16},
        "credit": {"algorithm": "dpo"},
        "update": DPO["update"],
    }
    with pytest.raises(ExperimentError, match=r"update\.data\.stage: the experiment has no \[stages\]"):
        prepare(parse_experiment(table, name="alone", folder=Path.cwd(), where="alone.toml"))


def test_records_of_other_runs_that_could_have_a_stages_ids_are_refused(ladder: Path, tmp_path: Path) -> None:
    other = {**DPO, "update": {**DPO["update"], "data": {"type": "stored", "runs": [str(ladder)]}}}
    with pytest.raises(ExperimentError, match="has this run's seed 0"):
        train(staged({"own": RL, "x": other}), out=tmp_path / "run", quiet=True)
