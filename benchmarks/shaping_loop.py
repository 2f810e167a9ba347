"""A reward for useful-looking steps makes a loop optimal in key_door, and potential shaping does not.

    python benchmarks/shaping_loop.py                 proof, then three seeds of each reward; goes on where it stopped
    python benchmarks/shaping_loop.py --steps 0       the proof alone, in seconds

The proof is dynamic programming over beliefs (`kifu.envs.optimal`), with the recipe's discount: in key_door as it is,
with 8 steps, and in the same world without a limit. The curves are those of recipes/key_door.toml with another reward
each; what a policy does is read off the records of its rollouts. Results stand in `--runs`, one line a run.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kifu.envs import Reply, Task
from kifu.envs.finite import FiniteModel, explore
from kifu.envs.optimal import (
    Course,
    Optimum,
    Payment,
    follow,
    optimum,
    pay_all,
    pay_components,
    pay_potential,
    pay_verdict,
)
from kifu.envs.suites.key_door import BUDGET, COLOURS, KeyDoor, model
from kifu.records import Purpose, StopReason, ToolCall, Trajectory
from kifu.records.reader import RunReader
from kifu.training.experiment.machine import this_cpu
from kifu.training.experiment.reading import load_experiment
from kifu.training.run import train

TOP = Path(__file__).parents[1]
RECIPE = TOP / "recipes" / "key_door.toml"
PAGE = TOP / "docs" / "results" / "shaping.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
GAMMA = 0.99
"""Of the recipe."""
LOOK = 0.1
"""Paid for every look around."""
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "sparse": (),
    "shaped": ('credit.shaping.type="potential"',),
    "naive 0.1": (f"credit.components.looked={LOOK}",),
    "naive 1": ("credit.components.looked=1.0",),
}
BLOCK = 20
"""Updates of one point of a curve."""


class EndlessKeyDoor(KeyDoor):
    """key_door without a budget: only finishing, or the wrong key or door, ends an episode."""

    id: ClassVar[str] = "key_door_endless"

    def step(self, call: ToolCall) -> Reply:
        """The budget is full again after every step."""
        reply = super().step(call)
        if self.state.stop is None:
            self.state = replace(self.state, budget=BUDGET)
        return reply


def endless() -> FiniteModel:
    """Every state of the endless world, red and blue doors equally likely."""
    return explore(EndlessKeyDoor(), [Task(id=door, family=door, data={"door": door}) for door in COLOURS])


def rewards() -> dict[str, Payment]:
    """What each variant pays."""
    return {
        "sparse": pay_verdict,
        "shaped": pay_all([pay_verdict, pay_potential(gamma=GAMMA)]),
        "naive 0.1": pay_all([pay_verdict, pay_components({"looked": LOOK})]),
        "naive 1": pay_all([pay_verdict, pay_components({"looked": 1.0})]),
    }


def solve(world: FiniteModel, pay: Payment) -> tuple[Optimum, Course]:
    """The optimum, and what it does from the start."""
    found = optimum(world, pay, gamma=GAMMA)
    [(_, first)] = found.start
    return found, follow(found, first)


def threshold() -> float:
    """Smallest reward of a look that makes looking for ever as good as finishing.

    Once the colour is known, finishing takes three calls and is worth gamma^2; looking for ever is worth w/(1 - gamma).
    """
    return (1 - GAMMA) * GAMMA**2


def proof() -> str:
    """A table of what is optimal, world by world."""
    lines = ["| world | reward | optimal value | optimal play behind a red or blue door | optimal calls as in sparse |"]
    lines.append("| --- | --- | --: | --- | --- |")
    for name, world in (("8 steps", model()), ("endless", endless())):
        plain, _ = solve(world, pay_verdict)
        for variant, pay in rewards().items():
            found, course = solve(world, pay)
            equal = sum(found.calls[belief] == plain.calls[belief] for belief in plain.calls)
            lines.append(
                f"| {name} | {variant} | {found.value:.4f} | {_told(course)} | {equal} of {len(plain.calls)} beliefs |"
            )
    return "\n".join(lines)


def _told(course: Course) -> str:
    calls = [call.partition("_")[0] for call in course.calls]
    shown = [f"{call} x{_run(calls, at)}" if _run(calls, at) > 1 else call for at, call in _starts(calls)]
    return ", ".join(shown) + ("" if course.ends else ", and again for ever: it never finishes")


def _starts(calls: Sequence[str]) -> list[tuple[int, str]]:
    return [(at, call) for at, call in enumerate(calls) if at == 0 or calls[at - 1] != call]


def _run(calls: Sequence[str], start: int) -> int:
    return next((at for at in range(start, len(calls)) if calls[at] != calls[start]), len(calls)) - start


def run(variant: str, *, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """Train one seed; what its rollouts did, block by block."""
    loaded = load_experiment(
        RECIPE,
        overrides=[*VARIANTS[variant], f"update.steps={steps}", "evaluation.tasks=2", "machine.threads=1"],
    )
    cpu = time.process_time()
    result = train(loaded, out=folder / f"{variant.replace(' ', '_')}-{seed}", seed=seed, quiet=True)
    reader = RunReader(folder / f"{variant.replace(' ', '_')}-{seed}")
    blocks: dict[int, list[Trajectory]] = {}
    for item in reader.trajectories():
        if item.key.purpose is Purpose.TRAIN:
            blocks.setdefault(item.key.step // BLOCK, []).append(item)
    return {
        "variant": variant,
        "seed": seed,
        "steps": steps,
        "greedy": result.evaluations[-1].success.to_json()["mean"],
        "curve": [_behaviour(blocks[at]) for at in sorted(blocks)],
        "cpu_s": time.process_time() - cpu,
    }


def _behaviour(episodes: Sequence[Trajectory]) -> dict[str, float]:
    looks = [sum(call.name == "inspect" for turn in one.turns for call in turn.action.executed) for one in episodes]
    return {
        "success": float(np.mean([one.reward or 0.0 for one in episodes])),
        "loops": float(np.mean([count > 1 for count in looks])),
        "looks": float(np.mean(looks)),
        "unfinished": float(np.mean([one.outcome.reason is StopReason.TASK_BUDGET for one in episodes])),
    }


def curves(results: Sequence[Mapping[str, Any]]) -> str:
    """Mean over seeds with the range of the seeds, block by block."""
    lines = [
        "| reward | updates | success | looks more than once | looks an episode | budget used up |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for variant in VARIANTS:
        rows = [row for row in results if row["variant"] == variant]
        for at in range(min((len(row["curve"]) for row in rows), default=0)):
            cells = [_spread([row["curve"][at][name] for row in rows]) for name in _COLUMNS]
            lines.append(f"| {variant} | {at * BLOCK + 1}-{(at + 1) * BLOCK} | " + " | ".join(cells) + " |")
    seeds = sorted({row["seed"] for row in results})
    spent = sum(row["cpu_s"] for row in results)
    cpu = this_cpu()
    lines += [
        "",
        f"Seeds {', '.join(map(str, seeds))}; mean [least, most] over them; 32 episodes an update. {spent:.0f} ",
    ]
    lines[-1] += f"CPU-s in all, on {cpu.name}, {cpu.cores} cores shared with other work."
    return "\n".join(lines)


_COLUMNS = ("success", "loops", "looks", "unfinished")


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def write(page: Path, text: str) -> None:
    """Put the tables between the marks of a page; a new page has nothing else."""
    old = page.read_text() if page.exists() else f"# Shaping and a naive reward in key_door\n\n{BEGIN}\n{END}\n"
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main(arguments: Sequence[str]) -> int:
    """Prove, run what is missing, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--steps", type=int, default=120, help="updates of 32 episodes; 0 proves only")
    parser.add_argument("--runs", type=Path, default=TOP / "runs" / "shaping_loop.jsonl", help="finished runs")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    shown = proof()
    print(shown, flush=True)
    if not options.steps:
        return 0
    options.runs.parent.mkdir(parents=True, exist_ok=True)
    lines = options.runs.read_text().splitlines() if options.runs.exists() else []
    results = [row for row in map(json.loads, lines) if row["steps"] == options.steps]
    done = {(row["variant"], row["seed"]) for row in results}
    for seed in map(int, options.seeds.split(",")):
        for variant in VARIANTS:
            if (variant, seed) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                results.append(run(variant, seed=seed, steps=options.steps, folder=Path(folder)))
            with options.runs.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
            print(f"{variant}, seed {seed}: {results[-1]['curve'][-1]}", flush=True)
    write(options.page, f"{shown}\n\n{curves(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
