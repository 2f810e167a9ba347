"""What a process reward model is worth and how it can be fooled, as two markdown tables.

    python benchmarks/process_reward.py                    three seeds, 120 tasks
    python benchmarks/process_reward.py --seeds 0,1 --tasks 40

First table: recipes/process_reward.toml without a signal, with differences of scores, and with the scores themselves.
Success is greedy, on held-out tasks. Second table: process reward models of calc_tools with the tokenizer of SmolLM2,
fitted to scripted courses in one wording of the calls or in two; how far the score moves when only the wording changes,
and how far when the final answer turns from right to wrong.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from kifu.credit.reading import RewardRules
from kifu.envs import Task
from kifu.envs.suites.calc_tools import CalcTools
from kifu.records import Group, Purpose, RolloutKey, ToolCall, Trajectory
from kifu.render import ToolView, load_renderer
from kifu.render.dialects.jsoncall import JsonCall
from kifu.rollout import Script, run_rollout
from kifu.training.experiment.layers import LabellingStage
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.reading import load_experiment
from kifu.training.run import train
from kifu.training.update.process_model import FittedProcess, fit_process_model, style_changes

RECIPES = Path(__file__).parents[1] / "recipes"
VARIANTS = {
    "no signal": ("stages.rl.credit.signals.progress.weight=0.0",),
    "differences": (),
    "scores": (
        'stages.rl.credit.signals.progress.pays="score"',
        "stages.rl.credit.signals.progress.is_repeatable=true",
    ),
}
"""Overrides of the recipe."""


@dataclass(frozen=True, slots=True)
class Wordy(JsonCall):
    """The same calls in the long form, on several lines."""

    def format_call(self, call: ToolCall, tools: Sequence[ToolView]) -> str:
        """Write the long form."""
        return json.dumps({"tool": call.name, "arguments": dict(call.arguments)}, indent=1)


def learning_rows(seeds: Sequence[int], *, profile: str) -> list[str]:
    """One line a variant and seed."""
    rows = []
    for variant, overrides in VARIANTS.items():
        for seed in seeds:
            with tempfile.TemporaryDirectory() as scratch:
                loaded = load_experiment(
                    RECIPES / "process_reward.toml", profile=profile, overrides=["machine.threads=1", *overrides]
                )
                result = train(loaded, out=Path(scratch) / "run", seed=seed, quiet=True)
                metrics = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
                fitted = json.loads((result.folder / "run.json").read_text())["reward_model"]
            rl = [row for row in metrics if row["stage"] == "rl"]
            found = result.evaluations[-1].success.to_json()
            rows.append(
                f"| {variant} | {seed} | {found['mean']:.2f} [{found['low']:.2f}, {found['high']:.2f}] "
                f"| {sum(row['success'] or 0.0 for row in rl) / len(rl):.2f} | {rl[-1]['turns']:.1f} "
                f"| {fitted['labels/error']:.3f} | {fitted['labels/baseline_error']:.3f} |"
            )
    return rows


def act(prepared: Prepared, task: Task, calls: Sequence[ToolCall | str], *, wordy: bool) -> Trajectory:
    """A scripted course in one of the two wordings."""
    assert prepared.model is not None
    dialect = Wordy() if wordy else JsonCall()
    renderer = load_renderer(Path(prepared.model.path), dialect=dialect, thinking=None)
    key = RolloutKey(seed=int(wordy), step=0, group=task.seed, member=len(calls), purpose=Purpose.DEMONSTRATION)
    script = Script(calls=tuple(call for call in calls if isinstance(call, ToolCall)))
    setting = replace(prepared.setting, renderer=renderer)
    return asyncio.run(run_rollout(setting, writer=script, key=key, task=task))


def groups_of(records: Sequence[Trajectory]) -> list[Group]:
    """One group a task."""
    by_task: dict[str, list[Trajectory]] = {}
    for record in records:
        by_task.setdefault(record.task.id, []).append(record)
    return [Group(task=members[0].task, members=tuple(members)) for members in by_task.values()]


def style_rows(tasks: int, *, model: str) -> list[str]:
    """One line a model: fitted to the first wording, to the second, to both."""
    prepared = prepare(load_experiment(RECIPES / "calc_tools.toml", overrides=[f'policy.model="{model}"']))
    layer = LabellingStage.model_validate_json(
        json.dumps(
            {
                "type": "labelling",
                "prompts_per_step": 1,
                "group_size": 1,
                "fit": {"hidden": 32, "steps": 300, "batch": 32, "learning_rate": 1e-2},
            }
        )
    )
    found = {
        wordy: [
            act(prepared, task, _muddled(task) if task.seed % 2 else CalcTools.demonstrate(task), wordy=wordy)
            for task in islice(CalcTools.tasks("train", 0), tasks)
        ]
        for wordy in (False, True)
    }
    fresh = list(islice(CalcTools.tasks("held_out", 5_000_000), tasks // 4))
    right = [
        (act(prepared, task, calls, wordy=False), act(prepared, task, calls, wordy=True))
        for task in fresh
        for calls in [CalcTools.demonstrate(task)]
    ]
    wrong = [act(prepared, task, [*CalcTools.demonstrate(task)[:-1], _wrong(task)], wordy=False) for task in fresh]
    fits = {"short": found[False], "long": found[True], "short and long": found[False] + found[True]}
    rows = []
    for name, records in fits.items():
        fitted = fit_process_model(groups_of(records), layer, rules=RewardRules(), seed=0)
        moved = style_changes(fitted, right)
        rows.append(
            f"| {name} | {len(records)} | {fitted.error or 0.0:.3f} | {fitted.baseline_error or 0.0:.3f} "
            f"| {np.abs(moved).mean():.3f} | {np.abs(moved).max():.3f} | {_answer_gap(fitted, right, wrong):+.3f} |"
        )
    return rows


def _muddled(task: Task) -> list[ToolCall | str]:
    """Five of the expert's look-ups and calculations in any order, some of them again and again."""
    return random.Random(task.seed).choices(CalcTools.demonstrate(task)[:3], k=5)


def _wrong(task: Task) -> ToolCall:
    last = CalcTools.demonstrate(task)[-1]
    assert isinstance(last, ToolCall)
    return ToolCall(name="answer", arguments={"arg": str(int(str(last.arguments["arg"])) + 1)})


def _answer_gap(
    model: FittedProcess, right: Sequence[tuple[Trajectory, Trajectory]], wrong: Sequence[Trajectory]
) -> float:
    good, bad = model.score(one for one, _ in right), model.score(wrong)
    return float(np.mean([good[one.id][-1] - bad[other.id][-1] for (one, _), other in zip(right, wrong, strict=True)]))


def main(arguments: Sequence[str]) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tasks", type=int, default=120)
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--model", default="smollm2-135m")
    asked = parser.parse_args(arguments)
    print("| signal | seed | success after | success while training | turns | error of the model | of the mean |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for row in learning_rows([int(seed) for seed in asked.seeds.split(",")], profile=asked.profile):
        print(row, flush=True)
    print()
    print("| fitted to | courses | error | of the mean | moved by style, mean | largest | right minus wrong answer |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for row in style_rows(asked.tasks, model=asked.model):
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
