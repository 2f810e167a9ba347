"""Facts that a model tells of finished rollouts: what is scored, under whose weights, and what is done without them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from kifu.credit.scored import GoldScores, HindsightScores
from kifu.envs import Task
from kifu.envs.suites.calc_tools import CalcTools
from kifu.envs.suites.key_door_text import KeyDoorText
from kifu.errors import ArgumentError, ExperimentError, InterruptedRun
from kifu.policy import ScoreRequest, Scores
from kifu.records import Origin, Purpose, StopReason, Trajectory, as_floats, content_digest
from kifu.records.reader import RunReader
from kifu.render import DIALECTS, Message, load_renderer
from kifu.rollout import Conversation, Prompt, Scoring, with_facts
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded, load_experiment
from kifu.training.inspection.explain import explain_step
from kifu.training.observe import Observer
from kifu.training.run import resume, train

Load = Callable[..., Loaded]
Make = Callable[..., Trajectory]
RECIPES = Path(__file__).parents[2] / "recipes"
METHODS = ("trace_turn_credit", "igpo", "hcapo")
SMALL = (
    "update.prompts_per_step=2",
    "update.group_size=2",
    "evaluation.tasks=1",
    "machine.threads=1",
    "machine.sampler_dtype='float32'",
)
SIX = ("update.group_size=6",)
"""A random policy soon breaks a key or finishes; among so many attempts some have several turns."""
NEEDED = {
    "trace_turn_credit": {"gold_logprob", "gold_logprob_after"},
    "igpo": {"gold_logprob"},
    "hcapo": {"hindsight_logprob"},
}


def calculating(method: str, *overrides: str) -> Loaded:
    """The calc_tools recipe in check mode, without its warm start; whatever a random model writes is an attempt."""
    return load_experiment(
        RECIPES / "calc_tools.toml",
        profile="check",
        overrides=(
            f"credit={{ algorithm = '{method}' }}",
            "environment.on_truncation='terminal'",
            "update.warm_start={ type = 'none' }",
            *SMALL,
            *overrides,
        ),
    )


def opening(method: str, *overrides: str) -> Loaded:
    """The key_door_text recipe in check mode: constrained to commands, so that episodes have several turns."""
    return load_experiment(
        RECIPES / "key_door_text.toml",
        profile="check",
        overrides=(
            f"credit={{ algorithm = '{method}' }}",
            "update.optimizer.learning_rate=0.01",
            *SMALL,
            *SIX,
            *overrides,
        ),
    )


def rollouts(run: Path) -> list[Trajectory]:
    return [item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.TRAIN]


class Reader:
    """The tiny model through transformers and tokenizers alone, in float32, with the weights it came with."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def mean(self, context: Sequence[int], scored: Sequence[int]) -> float:
        """Mean logprob of tokens that follow a context."""
        ids = torch.tensor([[*context, *scored]])
        with torch.inference_mode():
            logits_TV = self.model(input_ids=ids).logits[0].double()
        logp_TV = torch.log_softmax(logits_TV, dim=-1)
        first = len(context) - 1
        return float(np.mean([float(logp_TV[first + at, token]) for at, token in enumerate(scored)]))


@pytest.fixture(scope="module")
def reader() -> Reader:
    model = prepare(opening("grpo")).model
    assert model is not None
    return Reader(Path(model.path))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of one method in key_door_text, made once."""
    made: dict[str, Path] = {}

    def get(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp(method) / "run"
            train(opening(method), out=made[method], quiet=True)
        return made[method]

    return get


@pytest.mark.parametrize("method", METHODS)
def test_a_language_model_trains_with_facts_of_calc_tools(method: str, tmp_path: Path) -> None:
    train(calculating(method), out=tmp_path / "run", quiet=True)

    found = rollouts(tmp_path / "run")
    assert len(found) == 8
    for item in found:
        names = [{estimate.name for estimate in turn.estimates} - {"entropy"} for turn in item.turns]
        assert names[:-1] == [NEEDED[method] - {"gold_logprob_after"}] * (len(names) - 1)
        assert names[-1] == NEEDED[method]
    told = explain_step(tmp_path / "run", 0)
    assert "the run's plan holds these numbers" in told["notes"]


def gold_of(item: Trajectory) -> str:
    """The colour that fits, read off the task's seed."""
    task = next(iter(KeyDoorText.tasks(item.task.split, item.environment.seed)))
    assert task.id == item.task.id
    return str(task.data["fits"])


def tail_after(item: Trajectory, turn: int, texts: Sequence[str], reader: Reader) -> list[int]:
    """Tokens from the end of a turn to the next generation prompt with other observations, from their text."""
    pattern = next(one for one in item.turns[:-1] if one.results)
    ids = item.tape_ids(0).tolist()
    between = reader.decode(ids[pattern.stop : item.turns[pattern.index + 1].start])
    old = "\n".join(result.text for result in pattern.results)
    assert between.count(old) == 1
    return reader.encode(between.replace(old, "\n".join(texts)))


def several_turns(items: Sequence[Trajectory]) -> list[Trajectory]:
    return [item for item in items if len(item.turns) > 1]


class TestAgainstTransformers:
    def test_the_gold_answer_is_scored_behind_the_exact_context_of_every_turn(
        self, finished: Callable[[str], Path], reader: Reader
    ) -> None:
        """Frozen weights: also in the second step the numbers are those of the weights the run began with."""
        items = rollouts(finished("trace_turn_credit"))
        assert {item.key.step for item in items} == {0, 1}
        for item in items:
            gold, ids = reader.encode(gold_of(item)), item.tape_ids(0).tolist()
            for turn in item.turns:
                assert turn.estimate("gold_logprob") == pytest.approx(reader.mean(ids[: turn.start], gold), abs=1e-4)
            assert {one.policy_version for turn in item.turns for one in turn.estimates if "gold" in one.name} == {0}
        later = [span for item in items if item.key.step == 1 for span in item.tapes[0].spans]
        assert {span.policy_version for span in later} - {None} == {1}

    def test_after_the_last_turn_its_answer_stands_before_the_gold_one(
        self, finished: Callable[[str], Path], reader: Reader
    ) -> None:
        items = several_turns(rollouts(finished("trace_turn_credit")))
        assert items
        for item in items:
            last = item.turns[-1]
            if not (text := "".join(result.text for result in last.results)):
                continue
            context = item.tape_ids(0)[: last.stop].tolist() + tail_after(item, last.index, [text], reader)
            expected = reader.mean(context, reader.encode(gold_of(item)))
            assert last.estimate("gold_logprob_after") == pytest.approx(expected, abs=1e-4)

    def test_the_present_policy_scores_behind_the_text_of_the_released_code(
        self, finished: Callable[[str], Path], reader: Reader
    ) -> None:
        items = rollouts(finished("igpo"))
        lead = reader.encode("\nNow there's enough information to answer\n</think>\n<answer>\n")
        for item in (item for item in items if item.key.step == 0):
            gold, ids = reader.encode(gold_of(item)), item.tape_ids(0).tolist()
            for turn in item.turns:
                expected = reader.mean([*ids[: turn.start], *lead], gold)
                assert turn.estimate("gold_logprob") == pytest.approx(expected, abs=1e-4)
        assert {
            (item.key.step, one.policy_version)
            for item in items
            for turn in item.turns
            for one in turn.estimates
            if one.name == "gold_logprob"
        } == {(0, 0), (1, 1)}

    def test_hindsight_stands_at_the_end_of_what_was_shown_before_each_turn(
        self, finished: Callable[[str], Path], reader: Reader
    ) -> None:
        """The text with the hindsight in it, encoded whole; only tokens the policy chose are averaged."""
        checked = 0
        for item in several_turns([item for item in rollouts(finished("hcapo")) if item.key.step == 0]):
            assert item.verdict is not None
            final = "\n".join(one.text for one in item.turns[-1].results if one.text) or item.turns[-1].text
            known = f"\nIn the end: {final}\nOutcome: {'success' if item.verdict.success else 'failure'}"
            ids = item.tape_ids(0).tolist()
            for turn in item.turns:
                if turn.index == 0:
                    shown, end = reader.decode(ids[: turn.start]), "<|im_end|>\n<|im_start|>assistant\n"
                    assert shown.endswith(end)
                    context = reader.encode(shown.removesuffix(end) + known + end)
                else:
                    before = item.turns[turn.index - 1]
                    text = "\n".join(result.text for result in before.results) + known
                    context = ids[: before.stop] + tail_after(item, before.index, [text], reader)
                at, chosen = 0, list[int]()
                for span in item.tapes[0].spans:
                    if span.origin is Origin.POLICY and span.turn == turn.index:
                        chosen += range(at, at + len(span))
                    at += len(span)
                expected = mean_of_some(
                    reader, context, ids[turn.start : turn.stop], [at - turn.start for at in chosen]
                )
                assert turn.estimate("hindsight_logprob") == pytest.approx(expected, abs=1e-4)
                checked += 1
        assert checked > 4


def mean_of_some(reader: Reader, context: Sequence[int], written: Sequence[int], at: Sequence[int]) -> float:
    if not at:
        return 0.0
    return float(np.mean([reader.mean([*context, *written[:place]], [written[place]]) for place in at]))


@pytest.mark.parametrize("method", ["trace_turn_credit", "hcapo"])
def test_an_interrupted_run_has_the_same_facts(
    method: str, finished: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after the first step, so that frozen weights are those of a version on disk."""
    inner = Observer.end

    def stop(observer: Observer, seen: Any) -> None:  # noqa: ANN401 (passed on)
        inner(observer, seen)
        if seen.step == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Observer, "end", stop)
    with pytest.raises((KeyboardInterrupt, InterruptedRun)):
        train(opening(method), out=tmp_path / "run", quiet=True)
    monkeypatch.setattr(Observer, "end", inner)
    resume(tmp_path / "run", quiet=True)

    assert [content_digest(item) for item in rollouts(tmp_path / "run")] == [
        content_digest(item) for item in rollouts(finished(method))
    ]


class NoGold(CalcTools):
    """Nobody says what is right."""

    gold_answer = staticmethod(lambda task: None)  # type: ignore[assignment]


class TestRefused:
    @pytest.mark.parametrize("method", ["trace_turn_credit", "igpo"])
    def test_an_environment_without_a_gold_answer(self, method: str) -> None:
        with pytest.raises(ExperimentError, match=r"`calc_tools` has none for task calc_tools/.*define `gold_answer"):
            prepare(replace(calculating(method), environment=NoGold))
        prepare(replace(calculating("hcapo"), environment=NoGold))

    @pytest.mark.parametrize("method", METHODS)
    def test_a_policy_that_reads_symbols(self, method: str, load: Load) -> None:
        terminal = "environment.on_truncation=terminal"
        with pytest.raises(ExperimentError, match="engine `recurrent` reads symbols; use engine = `hf`"):
            prepare(load(f"credit={{ algorithm = '{method}' }}", "update.group_size=2", terminal))

    def test_a_template_without_its_place(self) -> None:
        with pytest.raises(ArgumentError, match=r"holds \{answer\} once, found 'so'"):
            GoldScores(template="so")
        with pytest.raises(ArgumentError, match=r"holds \{final\} or \{outcome\}, found 'so'"):
            HindsightScores(template="so")
        with pytest.raises(ExperimentError, match="answer"):
            prepare(calculating("igpo", "credit.options={ gold_template = 'so' }"))


class Restless:
    """A scorer whose weights are exchanged while it is asked for the first time."""

    def __init__(self) -> None:
        self.version, self.asked = 3, 0

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        self.asked += 1
        if self.asked == 1:
            self.version += 1
        nothing = as_floats([])
        return [
            Scores(logprobs=as_floats([-float(self.asked)] * one.positions.size), entropy=nothing) for one in requests
        ]


def ask(record: Trajectory, *, gold: str | None, scorer: Restless) -> Trajectory:
    model = prepare(opening("grpo")).model
    assert model is not None
    told = Conversation(
        messages=[Message(role="user", content="?"), Message(role="assistant", content="!")],
        prompts=[Prompt(messages=1, tools=())],
        renderer=load_renderer(Path(model.path), dialect=DIALECTS["command"]),
    )
    scoring = Scoring(rule=GoldScores(), scorer=scorer, gold=lambda task: gold)  # type: ignore[arg-type]
    return asyncio.run(with_facts(record, told, task=Task(id="t"), scoring=scoring))


def test_numbers_of_one_record_are_of_one_version(make_record: Make) -> None:
    scorer = Restless()
    found = ask(make_record([2]), gold="red", scorer=scorer)

    assert scorer.asked == 2
    assert [(one.name, one.value, one.policy_version) for one in found.turns[0].estimates] == [
        ("gold_logprob", -2.0, 4)
    ]


def sometimes(task: Task) -> str:
    if task.seed % 2:
        raise RuntimeError("no idea")
    return "1"


class Forgets(CalcTools):
    """Has a gold answer for every other task."""

    gold_answer = staticmethod(sometimes)


def test_a_task_without_a_gold_answer_is_a_failure_of_the_environment_and_has_no_reward(tmp_path: Path) -> None:
    loaded = calculating("igpo", "environment.failure_rate_limit=1.0", "update.steps=1", "update.patience=9")
    train(replace(loaded, environment=Forgets), out=tmp_path / "run", quiet=True)

    failed = [item for item in rollouts(tmp_path / "run") if item.environment.seed % 2]
    others = [item for item in rollouts(tmp_path / "run") if not item.environment.seed % 2]
    assert {item.outcome.reason for item in failed} == {StopReason.ENV_ERROR}
    assert {item.reward for item in failed} == {None}
    assert all("gold answer" in item.outcome.detail for item in failed)
    assert all(item.turns[0].estimate("gold_logprob") is not None for item in others)
    assert others
