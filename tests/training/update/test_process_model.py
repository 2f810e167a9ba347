"""A process reward model that is trained, used, declared, and asked what it makes of another wording."""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kifu.credit.reading import RewardRules
from kifu.envs import Task
from kifu.envs.suites.calc_tools import CalcTools
from kifu.errors import ArgumentError, ExperimentError
from kifu.records import Group, Purpose, RolloutKey, ToolCall, Trajectory, Turn
from kifu.records.plan import read_plan
from kifu.records.reader import RunReader
from kifu.render import ToolView, load_renderer
from kifu.render.dialects.jsoncall import JsonCall
from kifu.rollout import Script, run_rollout
from kifu.training.experiment.layers import LabellingStage
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.reading import Loaded, load_experiment, parse_experiment
from kifu.training.inspection.audit import audit
from kifu.training.inspection.explain import explain_step
from kifu.training.run import train
from kifu.training.update.process_model import fit_process_model, style_changes, turn_sequences

RECIPES = Path(__file__).parents[3] / "recipes"
Make = Callable[..., Trajectory]
DECLARED: dict[str, Any] = {
    "scores": "the history up to the end of a turn",
    "labeller": "the verdict",
    "is_checkable": False,
    "needs_continuation": True,
    "is_repeatable": False,
    "changes_optimum": True,
}


def labelling(**fit: Any) -> LabellingStage:  # noqa: ANN401 (settings)
    table = {"type": "labelling", "prompts_per_step": 1, "group_size": 1, "gamma": 0.5, "fit": fit}
    return LabellingStage.model_validate_json(json.dumps(table))


def groups_of(records: Sequence[Trajectory]) -> list[Group]:
    """One group a task."""
    by_task: dict[str, list[Trajectory]] = {}
    for record in records:
        by_task.setdefault(record.task.id, []).append(record)
    return [Group(task=members[0].task, members=tuple(members)) for members in by_task.values()]


class TestFitting:
    def test_turns_on_the_way_to_a_success_score_higher(self, make_record: Make) -> None:
        """Attempts of three one-token turns fail, those of two two-token turns succeed."""
        good = [make_record([2, 2], reward=1.0, member=at) for at in range(8)]
        bad = [make_record([1, 1, 1], reward=0.0, member=8 + at) for at in range(8)]

        model = fit_process_model(groups_of(good + bad), labelling(steps=150, hidden=8), rules=RewardRules(), seed=0)

        scores = model.score([good[0], bad[0]])
        assert [len(scores[item.id]) for item in (good[0], bad[0])] == [2, 3]
        assert scores[good[0].id] == pytest.approx([0.75, 1.0], abs=0.1), "(0.5^(1-k) + 1) / 2"
        assert scores[bad[0].id] == pytest.approx([0.375, 0.25, 0.0], abs=0.1), "(1 - 0.5^(2-k)) / 2"
        assert model.error is not None
        assert model.baseline_error is not None
        assert model.error < model.baseline_error

    def test_a_turn_is_read_up_to_its_end_and_no_further(self, make_record: Make) -> None:
        found = turn_sequences(make_record([1, 2]))
        assert [ids.tolist() for ids in found] == [[1, 2, 3, 100], [1, 2, 3, 100, 9, 9, 101, 102]]

    def test_the_seed_fixes_it(self, make_record: Make) -> None:
        records = [make_record([1, 1], reward=float(at % 2), member=at) for at in range(6)]
        fitted = [
            fit_process_model(groups_of(records), labelling(steps=5, hidden=8), rules=RewardRules(), seed=seed)
            for seed in (3, 3, 4)
        ]
        one, two, other = (model.score(records[:1])[records[0].id].tolist() for model in fitted)
        assert one == two != other

    def test_attempts_that_all_ended_alike_teach_nothing(self, make_record: Make) -> None:
        records = [make_record([1], reward=1.0, member=at) for at in range(4)]
        with pytest.raises(ExperimentError, match="ended alike"):
            fit_process_model(groups_of(records), labelling(), rules=RewardRules(), seed=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe in the mode that takes seconds, with a method whose credit is the plain return."""
    place = tmp_path_factory.mktemp("process") / "run"
    overrides = ["machine.threads=1", "evaluation.tasks=2", "stages.rl.credit.algorithm=reinforce"]
    train(load_experiment(RECIPES / "process_reward.toml", profile="check", overrides=overrides), out=place, quiet=True)
    return place


class TestUsed:
    def test_every_turn_is_paid_the_rise_of_its_score(self, run: Path) -> None:
        facts = json.loads((run / "run.json").read_text())["reward_model"]
        assert facts["labels/labels"] > 0
        rows = [row for line in read_plan(run) for row in line.rows]
        assert rows
        known = {item.id: item for item in RunReader(run).trajectories()}
        for row in rows:
            assert len(row.paid) == len(known[row.trajectory].turns)
            scores = np.cumsum(row.paid) / 0.5
            assert np.ptp([0.0, *scores]) <= 1.0, "scores and the baseline are shares"

    def test_what_was_paid_is_in_the_advantages(self, run: Path) -> None:
        """G_k = sum of gamma^(j-k) (paid_j + verdict at the end)."""
        known = {item.id: item for item in RunReader(run).trajectories()}
        for row in (row for line in read_plan(run) for row in line.rows):
            record, following = known[row.trajectory], 0.0
            expected: list[float] = []
            for k in reversed(range(len(record.turns))):
                verdict = float(record.reward or 0.0) if k == len(record.turns) - 1 else 0.0
                following = row.paid[k] + verdict + 0.99 * following
                expected.insert(0, following)
            found = {part.start: part.advantage for part in row.runs}
            for turn, value in zip(record.turns, expected, strict=True):
                at = max(start for start in found if start < turn.stop)
                assert found[at] == pytest.approx(value, abs=1e-9)

    def test_the_record_explains_it_and_the_protocol_holds_the_declarations(self, run: Path) -> None:
        report = audit(run)
        assert (report.problems, report.ledger_closed) == ((), True)
        assert "the run's plan holds these numbers" in explain_step(run, 1)["notes"]
        prepared = prepare(load_experiment(RECIPES / "process_reward.toml", profile="check"))
        declared = prepared.protocol.tables["credit"]["signals"]["progress"]
        assert set(DECLARED) <= set(declared)


def staged(signal: dict[str, Any], algorithm: str = "reinforce") -> Loaded:
    update = {"steps": 1, "prompts_per_step": 2, "group_size": 6, "optimizer": {"type": "adamw", "learning_rate": 1e-2}}
    labels = {"type": "labelling", "prompts_per_step": 4, "group_size": 4, "fit": {"steps": 5, "hidden": 8}}
    credit = {"algorithm": algorithm, "gamma": 1.0, "signals": {"mine": signal}}
    table = {
        "kifu": 1,
        "environment": {"name": "key_door", "decision_model": "tool call, POMDP", "on_truncation": "terminal"},
        "policy": {"engine": "recurrent", "hidden": 16},
        "stages": {"labels": labels, "rl": {"type": "train", "credit": credit, "update": update}},
        "evaluation": {"tasks": 1},
        "machine": {"threads": 1},
    }
    return parse_experiment(table, name="signals", folder=Path.cwd(), where="signals.toml")


class TestDeclared:
    @pytest.mark.parametrize("kind", ["process_model", "hindsight"])
    @pytest.mark.parametrize("missing", DECLARED)
    def test_a_signal_without_one_of_its_six_declarations_cannot_be_loaded(self, kind: str, missing: str) -> None:
        stage = {"stage": "labels"} if kind == "process_model" else {}
        signal = {"type": kind, "weight": 1.0, **stage, **DECLARED}
        staged(signal)
        del signal[missing]
        with pytest.raises(ExperimentError, match=rf"stages\.rl\.credit\.signals\.mine\.{missing}: missing"):
            staged(signal)

    def test_an_empty_declaration_is_none(self) -> None:
        signal = {"type": "hindsight", "weight": 1.0, **DECLARED, "labeller": ""}
        with pytest.raises(ExperimentError, match=r"mine\.labeller: .*at least 1 character"):
            staged(signal)

    def test_a_signal_of_a_stage_that_fits_nothing_is_refused(self) -> None:
        signal = {"type": "process_model", "stage": "lables", "weight": 1.0, **DECLARED}
        with pytest.raises(
            ExperimentError, match="no earlier stage `lables` of type `labelling`; did you mean `labels`"
        ):
            prepare(staged(signal))


def test_a_critic_in_hindsight_pays_what_the_finished_attempts_say(tmp_path: Path) -> None:
    """Compared with the means over attempts in the same state, counted here."""
    signal = {"type": "hindsight", "weight": 0.25, **DECLARED}
    train(staged(signal), out=tmp_path / "run", quiet=True)

    rows = {row.trajectory: row for line in read_plan(tmp_path / "run") for row in line.rows}
    members = [item for item in RunReader(tmp_path / "run").trajectories() if item.id in rows]
    paid: set[float] = set()
    for group in {item.key.group for item in members}:
        mine = [item for item in members if item.key.group == group]
        seen: dict[Any, set[tuple[str, float]]] = {}
        for item in mine:
            for turn in item.turns:
                outcome = (item.id, float(item.reward or 0.0))
                seen.setdefault(turn.state_key, set()).add(outcome)
                seen.setdefault((turn.state_key, str(turn.action.executed)), set()).add(outcome)
        for item in mine:
            for turn, found in zip(item.turns, rows[item.id].paid, strict=True):
                state = [value for _, value in seen[turn.state_key]]
                action = [value for _, value in seen[turn.state_key, str(turn.action.executed)]]
                assert found == pytest.approx(0.25 * np.sign(round(np.mean(action) - np.mean(state), 9)))
                paid.add(float(found))
    assert len(paid) > 1, "some turn was told apart"


def test_another_method_is_paid_for_attempts_the_plan_has_no_row_of(tmp_path: Path) -> None:
    """Returns of `reinforce` are the critic's signs and the verdict from each turn on, also where `rft` trains none."""
    signal = {"type": "hindsight", "weight": 0.25, **DECLARED}
    train(staged(signal, algorithm="rft"), out=tmp_path / "run", quiet=True)
    attempts = [item for item in RunReader(tmp_path / "run").trajectories() if item.key.purpose is Purpose.TRAIN]
    last = max(item.key.step for item in attempts)
    planned = {row.trajectory for line in read_plan(tmp_path / "run") if line.step == last for row in line.rows}
    members = {item.id: item for item in attempts if item.key.step == last}
    told = explain_step(tmp_path / "run", last, algorithm="reinforce")

    without_row = 0
    for group in told["groups"]:
        mine = [members[item["id"]] for item in group["trajectories"]]
        for item, found in zip(mine, group["trajectories"], strict=True):
            paid = []
            for turn in item.turns:
                here = [one for one in mine if any(seen.state_key == turn.state_key for seen in one.turns)]
                alike = [one for one in here if any(_same(seen, turn) for seen in one.turns)]
                gap = np.mean([one.reward or 0.0 for one in alike]) - np.mean([one.reward or 0.0 for one in here])
                paid.append(0.25 * float(np.sign(round(float(gap), 9))))
            without_row += item.id not in planned and any(paid)
            paid[-1] += item.reward or 0.0
            assert [turn["advantage"] for turn in found["turns"]] == pytest.approx(
                [sum(paid[at:]) for at in range(len(paid))]
            )
    assert without_row > 0


def _same(one: Turn, other: Turn) -> bool:
    return (one.state_key, one.action.executed) == (other.state_key, other.action.executed)


@dataclass(frozen=True, slots=True)
class Wordy(JsonCall):
    """The same calls in the long form, with other spaces."""

    def format_call(self, call: ToolCall, tools: Sequence[ToolView]) -> str:
        """Write the long form."""
        return json.dumps({"tool": call.name, "arguments": dict(call.arguments)}, indent=1)


class TestStyle:
    """The same actions in other words: a model that reads tokens has an opinion about the words."""

    @pytest.fixture(scope="class")
    @classmethod
    def prepared(cls) -> Prepared:
        return prepare(load_experiment(RECIPES / "calc_tools.toml", profile="check"))

    def act(self, prepared: Prepared, task: Task, calls: Sequence[ToolCall | str], *, wordy: bool) -> Trajectory:
        assert prepared.model is not None
        dialect = Wordy() if wordy else JsonCall()
        setting = replace(
            prepared.setting, renderer=load_renderer(Path(prepared.model.path), dialect=dialect, thinking=None)
        )
        key = RolloutKey(seed=int(wordy), step=0, group=task.seed % 1000, member=0, purpose=Purpose.DEMONSTRATION)
        script = Script(calls=tuple(call for call in calls if isinstance(call, ToolCall)))
        return asyncio.run(run_rollout(setting, writer=script, key=key, task=task))

    def courses(self, prepared: Prepared) -> list[tuple[Trajectory, Trajectory]]:
        """Right courses and muddled ones of eight tasks, each in both wordings."""
        found = []
        for task in islice(CalcTools.tasks("train", 0), 8):
            calls = CalcTools.demonstrate(task)
            if task.seed % 2:
                calls = tuple(random.Random(task.seed).choices(calls[:3], k=5))
            found.append((self.act(prepared, task, calls, wordy=False), self.act(prepared, task, calls, wordy=True)))
        return found

    def test_a_model_that_saw_one_wording_is_moved_by_another_and_one_that_saw_both_less(
        self, prepared: Prepared
    ) -> None:
        pairs = self.courses(prepared)
        assert all([turn.text for turn in one.turns] != [turn.text for turn in two.turns] for one, two in pairs)
        assert {one.reward for one, _ in pairs} == {0.0, 1.0}
        layer = labelling(steps=40, hidden=8, batch=8)
        single = fit_process_model(groups_of([one for one, _ in pairs]), layer, rules=RewardRules(), seed=0)
        both = fit_process_model(
            groups_of([item for pair in pairs for item in pair]), layer, rules=RewardRules(), seed=0
        )

        moved = np.abs(style_changes(single, pairs)).mean()
        steadier = np.abs(style_changes(both, pairs)).mean()

        print(
            f"mean change of the score under a rewrite of style: {moved:.3f}; fitted to both wordings: {steadier:.3f}"
        )
        assert 0.0 < steadier < moved

    def test_other_actions_are_no_rewrite(self, prepared: Prepared) -> None:
        one, two = islice(CalcTools.tasks("train", 0), 2)
        records = [self.act(prepared, task, CalcTools.demonstrate(task), wordy=False) for task in (one, two)]
        wrong = self.act(prepared, one, [ToolCall(name="answer", arguments={"arg": "no"})], wordy=True)
        layer = labelling(steps=2, hidden=8)
        model = fit_process_model(groups_of([*records, wrong]), layer, rules=RewardRules(), seed=0)
        with pytest.raises(ArgumentError, match="executed different actions"):
            style_changes(model, [(records[0], records[1])])
