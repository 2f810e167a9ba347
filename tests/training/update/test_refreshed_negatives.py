"""Negatives sampled in the states of stored experts: what is sampled, what is trained, and what a kill changes."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log1p, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kifu.envs import Capabilities, SnapshotKind
from kifu.envs.suites.key_door_text import KeyDoorText
from kifu.errors import ExperimentError, InterruptedRun
from kifu.records import Origin, Owner, Purpose, RunReader, StopReason, Trajectory, content_digest
from kifu.records.plan import PlanLine, read_plan
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded, load_experiment
from kifu.training.inspection.audit import audit
from kifu.training.inspection.explain import explain_step
from kifu.training.observe import Observer
from kifu.training.run import resume, train

RECIPES = Path(__file__).parents[3] / "recipes"
SMALL = (
    "environment.collector_limits={ tokens = 900, seconds = 600 }",
    "evaluation.tasks=1",
    "machine.threads=1",
    "machine.sampler_dtype='float32'",
    "machine.trainer_dtype='float32'",
)
PLAIN = "temperature = 1.0, top_p = 1.0"


def recipe(name: str, *overrides: str) -> Loaded:
    return load_experiment(RECIPES / f"{name}.toml", profile="check", overrides=(*SMALL, *overrides))


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished run of two demonstrations, each made once; they succeed."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("source") / name
            warm = "{ type = 'demonstrations', steps = 1, traces_per_step = 2, noise = 0.0, "
            warm += "optimizer = { type = 'adamw', learning_rate = 1e-9 } }"
            one = ("update.steps=1", "update.group_size=1", "update.prompts_per_step=1", "update.patience=9")
            credit = ("credit={ algorithm = 'reinforce' }", "environment.on_truncation='terminal'")
            train(recipe(name, f"update.warm_start={warm}", *one, *credit), out=made[name], quiet=True)
        return made[name]

    return get


@pytest.fixture(scope="module")
def refreshed(demonstrations: Callable[[str], Path]) -> Callable[..., Loaded]:
    """The experiment that samples in the states of these demonstrations."""

    def make(name: str, *overrides: str, options: str, steps: int = 1) -> Loaded:
        return recipe(
            name,
            f"credit={{ algorithm = 'agentic_dpo', options = {{ {options} }} }}",
            "update.warm_start={ type = 'none' }",
            f"update.data={{ type = 'stored', runs = ['{demonstrations(name)}'], records = 'demonstration' }}",
            f"update.steps={steps}",
            "update.prompts_per_step=2",
            "update.optimizer.learning_rate=0.001",
            *overrides,
        )

    return make


@pytest.fixture(scope="module")
def finished(refreshed: Callable[..., Loaded], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps on two demonstrations of four turns: one of warm-up, a round of six, the first of another round."""
    run = tmp_path_factory.mktemp("refreshed") / "run"
    train(refreshed("key_door_text", options="warm_up = 1, round_steps = 6", steps=8), out=run, quiet=True, seed=1)
    return run


def sampled(run: Path) -> list[Trajectory]:
    return [item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.TRAIN]


def lines_of(run: Path) -> list[PlanLine]:
    return [line for line in read_plan(run) if line.rows]


def own_logprobs(item: Trajectory) -> list[float]:
    """Of what the policy sampled, in order, with the positions left out."""
    spans = (span for tape in item.tapes for span in tape.spans if span.origin is Origin.POLICY)
    return [value for span in spans if span.logprobs is not None for value in span.logprobs.tolist()]


def tool_of(item: Trajectory, turn: int) -> str:
    return " ".join(call.name for call in item.turns[turn].action.executed)


def test_each_rollout_is_one_turn_of_the_present_policy_in_a_state_of_its_expert(
    finished: Path, demonstrations: Callable[[str], Path]
) -> None:
    experts = {item.id: item for item in RunReader(demonstrations("key_door_text")).trajectories()}
    began = {line.step: line.version for line in read_plan(finished)}
    checked = 0
    for item in sampled(finished):
        assert item.branch is not None
        expert = experts[item.branch.parent]
        turn = expert.turns[item.branch.turn]
        assert item.outcome.reason is StopReason.TURN_LIMIT or item.outcome.reason.owner is Owner.TASK
        assert len(item.turns) == turn.index + 1
        assert item.turns[turn.index].start == turn.start
        assert item.tape_ids(0)[: turn.start].tolist() == expert.tape_ids(0)[: turn.start].tolist()
        assert item.branch.digest == turn.results[0].digest_before
        assert item.branch.restored_by == "replay"
        spans = [span for span in item.tapes[0].spans if span.origin is Origin.POLICY]
        assert {span.turn for span in spans} == {turn.index}
        assert {span.policy_version for span in spans} == {began[item.key.step]}
        assert all(span.sampling is not None and span.sampling.temperature == 0.7 for span in spans)
        assert all(not old.estimates for old in item.turns[: turn.index])
        checked += 1
    assert checked > 0


def test_a_round_samples_once_in_every_state_and_the_next_round_anew(finished: Path) -> None:
    """Two experts of four turns: four steps show all states, two more come back to them, then a round begins."""
    per_step = Counter(item.key.step for item in sampled(finished))
    assert per_step == {1: 8, 2: 8, 3: 8, 4: 8, 7: 8}
    lines = lines_of(finished)
    assert [line.step for line in lines] == list(range(8))
    negatives = [{row.trajectory for row in line.rows if row.trajectory.startswith("train/")} for line in lines]
    assert negatives[0] == set()
    assert negatives[5]
    assert negatives[5] <= negatives[1]
    assert negatives[6] <= negatives[2]
    assert {name.split("/")[2] for name in negatives[7]} <= {"t00007"}
    used = {row.trajectory: row.times_used for row in lines[5].rows if row.trajectory in negatives[5]}
    assert set(used.values()) == {2}


def test_the_hardest_action_with_another_tool_is_trained_and_the_books_close(
    finished: Path, demonstrations: Callable[[str], Path]
) -> None:
    experts = {item.id: item for item in RunReader(demonstrations("key_door_text")).trajectories()}
    records = sampled(finished)
    refreshed = 0
    for line in lines_of(finished):
        fresh = [item for item in records if item.key.step == line.step]
        states: dict[tuple[str, int], list[Trajectory]] = {}
        for item in fresh:
            assert item.branch is not None
            states.setdefault((item.branch.parent, item.branch.turn), []).append(item)
        expected = set()
        for (parent, turn), items in states.items():
            wrong = [item for item in items if tool_of(item, turn) != tool_of(experts[parent], turn)]
            best = max(wrong, key=lambda item: (sum(own_logprobs(item)), item.id), default=None)
            expected |= {best.id} if best is not None else set()
        trained = {name for name, bucket in line.buckets.items() if bucket == "trained"}
        assert trained == expected
        assert {name for name in line.buckets if name.startswith("train/")} == {item.id for item in fresh}
        refreshed += len(trained)
    assert refreshed > 0
    report = audit(finished, replay=True)
    assert (report.problems, report.not_rebuildable, report.ledger_closed) == ((), (), True)


def test_a_reader_of_the_run_deals_out_the_same_pairs(finished: Path) -> None:
    for step in range(8):
        assert "the run's plan holds these numbers" in explain_step(finished, step)["notes"], step


def plain_logprobs(run: Path, item: Trajectory, positions: Sequence[int]) -> list[float]:
    """Under the tiny model as it came, through transformers alone: temperature 1, every token."""
    model = AutoModelForCausalLM.from_pretrained(
        json.loads((run / "run.json").read_text())["model"], dtype=torch.float32
    )
    with torch.inference_mode():
        logits_TV = model(input_ids=torch.tensor([item.tape_ids(0).tolist()])).logits[0].double()
    logp_TV = torch.log_softmax(logits_TV, dim=-1)
    return [float(logp_TV[at - 1, int(item.tape_ids(0)[at])]) for at in positions]


@pytest.mark.parametrize("options", [PLAIN, "temperature = 0.7"])
def test_the_loss_is_the_published_one(
    options: str, refreshed: Callable[..., Loaded], demonstrations: Callable[[str], Path], tmp_path: Path
) -> None:
    """At the first step, before anything was learned; at temperature 1 with all tokens from the recorded logprobs."""
    run = tmp_path / "run"
    train(refreshed("calc_tools", options=f"warm_up = 0, {options}"), out=run, quiet=True, seed=1)

    (line,) = lines_of(run)
    known = {item.id: item for item in [*RunReader(demonstrations("calc_tools")).trajectories(), *sampled(run)]}
    sides: dict[int, dict[float, list[float]]] = {}
    for row in line.rows:
        item = known[row.trajectory]
        parts = [part for part in row.runs if part.weight]
        places = [at for part in parts for at in range(part.start, part.stop)]
        if options == PLAIN and row.trajectory.startswith("train/"):
            found = own_logprobs(item)
            assert found == pytest.approx(plain_logprobs(run, item, places), abs=1e-4)
        else:
            found = plain_logprobs(run, item, places)
        assert row.pair is not None
        sides.setdefault(row.pair, {})[parts[0].advantage] = found
    assert len(sides) == 2
    preference = likelihood = 0.0
    compared = 0
    for side in sides.values():
        likelihood += 0.5 * -float(np.mean(side[1.0])) / len(sides)
        if -1.0 in side:
            beta = 0.008 / sqrt(max(len(side[1.0]), len(side[-1.0])))
            preference += log1p(np.exp(-beta * (sum(side[1.0]) - sum(side[-1.0])))) / len(sides)
            compared += 1
    assert compared > 0
    seen = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert seen["objective/pairs"] == compared
    assert seen["objective/loss_preference"] == pytest.approx(preference, abs=1e-4)
    assert seen["objective/loss_likelihood"] == pytest.approx(likelihood, abs=1e-4)


def test_a_run_stopped_inside_a_round_goes_on_with_what_the_round_sampled(
    finished: Path, refreshed: Callable[..., Loaded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Observer.end

    def stop(observer: Observer, seen: Any) -> None:  # noqa: ANN401 (passed on)
        inner(observer, seen)
        if seen.step == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Observer, "end", stop)
    run = tmp_path / "run"
    with pytest.raises((KeyboardInterrupt, InterruptedRun)):
        train(refreshed("key_door_text", options="warm_up = 1, round_steps = 6", steps=8), out=run, quiet=True, seed=1)
    monkeypatch.setattr(Observer, "end", inner)
    resume(run, quiet=True)

    assert ending(run) == ending(finished)


def ending(run: Path) -> tuple[list[str], list[object], list[object]]:
    """Digests of every record and version, and every plan line but the heads, which depend on the order of arrival."""
    records = [f"{item.id} {content_digest(item)}" for item in RunReader(run).trajectories()]
    versions = [json.loads(text)["weights"] for text in (run / "weights" / "versions.jsonl").read_text().splitlines()]
    return sorted(records), versions, [replace(line, head="") for line in read_plan(run)]


def test_a_killed_run_ends_as_if_nobody_had_touched_it(
    load: Callable[..., Loaded], kill_and_resume: Callable[..., None], tmp_path: Path
) -> None:
    """A recurrent policy, killed inside a round, between sampling in the states of demonstrations and its update."""
    source, one, two = tmp_path / "source", tmp_path / "one", tmp_path / "two"
    warm = "{ type = 'demonstrations', steps = 1, traces_per_step = 4, noise = 0.0, "
    warm += "optimizer = { type = 'adamw', learning_rate = 1e-9 } }"
    terminal = "environment.on_truncation='terminal'"
    few = ("update.steps=1", "update.prompts_per_step=1", "update.group_size=1", f"update.warm_start={warm}")
    train(load("credit={ algorithm = 'reinforce' }", terminal, *few), out=source, quiet=True, seed=7)
    overrides = (
        "credit={ algorithm = 'agentic_dpo', options = { warm_up = 0, round_steps = 3 } }",
        terminal,
        f"update.data={{ type = 'stored', runs = ['{source}'], records = 'demonstration' }}",
        "update.steps=4",
        "update.prompts_per_step=2",
    )
    train(load(*overrides), out=one, quiet=True)
    kill_and_resume(two, *overrides, crash_at="plan.after_line#2")

    assert ending(two) == ending(one)
    assert sum(bucket == "trained" for line in read_plan(two) for bucket in line.buckets.values()) > 0


class Restless(KeyDoorText):
    """The same action may lead elsewhere."""

    capabilities = replace(KeyDoorText.capabilities, deterministic=False)


class Sealed(KeyDoorText):
    """No state can be reached again."""

    capabilities = Capabilities(snapshot=SnapshotKind.NONE)


class TestRefused:
    @pytest.mark.parametrize(
        ("world", "told"), [(Restless, "is not deterministic; set credit.options.negatives"), (Sealed, "no snapshot")]
    )
    def test_a_world_whose_states_cannot_be_reached_again(
        self, world: type[KeyDoorText], told: str, refreshed: Callable[..., Loaded]
    ) -> None:
        with pytest.raises(ExperimentError, match=told):
            prepare(replace(refreshed("key_door_text", options=""), environment=world))

    def test_a_round_of_no_steps(self, refreshed: Callable[..., Loaded]) -> None:
        with pytest.raises(ExperimentError, match="round_steps"):
            prepare(refreshed("key_door_text", options="round_steps = 0"))

    def test_experts_whose_ids_the_rollouts_of_this_run_could_have(
        self, load: Callable[..., Loaded], tmp_path: Path
    ) -> None:
        terminal, one = "environment.on_truncation='terminal'", "update.steps=1"
        source = tmp_path / "source"
        train(load("credit={ algorithm = 'reinforce' }", terminal, one), out=source, quiet=True)
        data = f"update.data={{ type = 'stored', runs = ['{source}'] }}"
        with pytest.raises(ExperimentError, match="has this run's seed 0"):
            train(load("credit={ algorithm = 'agentic_dpo' }", terminal, one, data), out=tmp_path / "run", quiet=True)
