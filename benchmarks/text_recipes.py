"""A recipe of a language model over several seeds: success before and after, time, memory; printed as a markdown table.

    python benchmarks/text_recipes.py recipes/key_door_text.toml --seeds 0,1,2 [--out DIR] [--set path=value ...]

Each run is a process of its own, so that CPU time and peak memory are its own. ``before`` is the evaluation just before
reinforcement learning starts. Exits 1 when a run begins above 0.35 or ends below 0.95.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kifu.monitor import read_metrics
from kifu.training.experiment.machine import this_cpu

BEFORE_AT_MOST, AFTER_AT_LEAST = 0.35, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one seed gave."""

    seed: int
    before: dict[str, float]
    after: dict[str, float]
    wall_s: float
    cpu_s: float
    peak_gb: float
    sampled: tuple[float | None, ...]
    """Success of the training rollouts, step by step."""

    def row(self) -> str:
        """A line of the table."""
        return (
            f"| {self.seed} | {_interval(self.before)} | {_interval(self.after)} | {self.wall_s:.0f} | "
            f"{self.cpu_s:.0f} | {self.peak_gb:.1f} | {_curve(self.sampled)} |"
        )


def _interval(found: dict[str, float]) -> str:
    return f"{found['mean']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def _curve(values: tuple[float | None, ...]) -> str:
    return " ".join("-" if value is None else f"{value:.2f}".lstrip("0") for value in values)


def run_once(recipe: Path, *, seed: int, out: Path, overrides: list[str]) -> Run:
    """Train in a process of its own and read its run folder."""
    command = [sys.executable, "-c", "from kifu.cli import main; main()", "train", str(recipe)]
    command += ["--seed", str(seed), "--out", str(out), "--json"]
    command += [word for override in overrides for word in ("--set", override)]
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - began
    if status:
        raise SystemExit(f"seed {seed} ended with status {os.waitstatus_to_exitcode(status)}; its folder is {out}")
    facts = json.loads((out / "run.json").read_text())
    return Run(
        seed=seed,
        before=facts["evaluations"][0]["success"],
        after=facts["evaluations"][-1]["success"],
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_gb=usage.ru_maxrss * 1024 / 1e9,
        sampled=tuple(row["success"] for row in read_metrics(out / "metrics.jsonl") if row["stage"] == "train"),
    )


def main() -> int:
    """Run every seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, help="keep the run folders here")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    options = parser.parse_args()
    cpu = this_cpu()
    print(f"recipe {options.recipe}, {' '.join(options.overrides) or 'as it stands'}")
    print(f"machine: {cpu.name}, {cpu.cores} cores, fast bfloat16: {cpu.fast_bf16}\n")
    print("| seed | before | after | wall s | CPU-s | peak GB | success of the training rollouts, by step |")
    print("| --: | --- | --- | --: | --: | --: | --- |")
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in map(int, options.seeds.split(",")):
            out = (options.out or Path(scratch)) / f"{options.recipe.stem}-seed{seed}"
            runs.append(run_once(options.recipe, seed=seed, out=out, overrides=options.overrides))
            print(runs[-1].row(), flush=True)
    kept = [run.before["mean"] <= BEFORE_AT_MOST and run.after["mean"] >= AFTER_AT_LEAST for run in runs]
    print(f"\n{sum(kept)} of {len(kept)} runs begin at {BEFORE_AT_MOST} or less and end at {AFTER_AT_LEAST} or more.")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
