"""Several seeds of recipes/key_door.toml as a markdown table: sparse, shaped, without memory, and cut by the collector.

    python benchmarks/key_door.py                                   three seeds of the quick profile
    python benchmarks/key_door.py --profile full --seeds 0,1,2,3,4,5,6,7,8,9

Success is greedy, on held-out tasks, on red and on blue doors separately, with 95 % intervals. A greedy policy and this
world are deterministic and both doors are equally many, so the mean of the two is the exact success of the policy; the
control must not exceed the memoryless optimum by it.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kifu.envs.suites.key_door import BUDGET, memoryless_optimum
from kifu.evaluation import EvaluationSummary
from kifu.training.experiment.machine import this_cpu
from kifu.training.experiment.reading import load_experiment
from kifu.training.run import train

RECIPE = Path(__file__).parents[1] / "recipes" / "key_door.toml"
VARIANTS = {
    "sparse": (),
    "shaped": ('credit.shaping.type="potential"',),
    "control": ('policy.kind="feedforward"',),
    "cut after 5": ("environment.collector_limits.turns=5",),
}
"""Overrides of the recipe. A cut is bootstrapped with V(h_T); the task itself allows `BUDGET` steps."""
GOAL = 0.95


@dataclass(frozen=True, kw_only=True)
class Run:
    """One seed of one variant."""

    variant: str
    seed: int
    steps: int
    solved_at: int | None
    """Version of the first evaluation with every colour at the goal."""
    best: float
    """Largest success of any evaluation, both colours together."""
    last: EvaluationSummary
    cpu_s: float
    wall_s: float

    def row(self) -> str:
        """One line of the table."""
        solved = "" if self.solved_at is None else str(self.solved_at)
        cells = [_cell(self.last, colour) for colour in ("red", "blue")]
        return (
            f"| {self.variant} | {self.seed} | {cells[0]} | {cells[1]} | {self.best:.2f} | {self.steps} | {solved} "
            f"| {self.cpu_s:.0f} | {self.wall_s:.0f} |"
        )


def _cell(summary: EvaluationSummary, colour: str) -> str:
    found = summary.by_family[colour].to_json()
    return f"{found['mean']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def _lowest(summary: EvaluationSummary) -> float:
    return min(float(success.to_json()["mean"] or 0.0) for success in summary.by_family.values())


def run(variant: str, *, seed: int, profile: str | None, folder: Path) -> Run:
    """Train one seed and read its evaluations off the result."""
    loaded = load_experiment(RECIPE, profile=profile, overrides=VARIANTS[variant])
    cpu, wall = time.process_time(), time.perf_counter()
    result = train(loaded, out=folder / f"{variant.replace(' ', '_')}-{seed}", seed=seed, quiet=True)
    solved = [int(summary.checkpoint) for summary in result.evaluations if _lowest(summary) >= GOAL]
    return Run(
        variant=variant,
        seed=seed,
        steps=result.steps,
        solved_at=min(solved, default=None),
        best=max(float(summary.success.to_json()["mean"] or 0.0) for summary in result.evaluations),
        last=result.evaluations[-1],
        cpu_s=time.process_time() - cpu,
        wall_s=time.perf_counter() - wall,
    )


def verdicts(runs: Sequence[Run]) -> list[str]:
    """What is wanted, and whether it was found."""
    optimum = memoryless_optimum().value
    learners = [item for item in runs if item.variant in ("sparse", "shaped")]
    controls = [item for item in runs if item.variant == "control"]
    found = []
    if learners:
        solved = sum(_lowest(item.last) >= GOAL for item in learners)
        found.append(f"{solved} of {len(learners)} sparse and shaped runs end with at least {GOAL} on either colour.")
        found.append(f"The dearest of them took {max(item.cpu_s for item in learners):.0f} CPU-s.")
    if controls:
        best = max(item.best for item in controls)
        side = "not above" if best <= optimum else "ABOVE"
        found.append(
            f"Without memory the best evaluation of all runs is {best:.4f}, {side} the exact optimum {optimum} of a "
            f"policy that sees the present observation only (one-sided: at most the optimum)."
        )
    return found


def main(arguments: Sequence[str]) -> int:
    """Run, print, and fail where a verdict does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma-separated, of: " + ", ".join(VARIANTS))
    parser.add_argument("--out", type=Path, help="keep the run folders here")
    options = parser.parse_args(arguments)
    cpu = this_cpu()
    print(f"profile {options.profile}, task budget {BUDGET} steps, machine: {cpu.name}, {cpu.cores} cores\n")
    print("| variant | seed | red | blue | best of any evaluation | steps | solved at version | CPU-s | wall s |")
    print("| --- | --: | --- | --- | --: | --: | --: | --: | --: |", flush=True)
    runs = []
    with tempfile.TemporaryDirectory() as temporary:
        for variant in options.variants.split(","):
            for seed in map(int, options.seeds.split(",")):
                folder = options.out or Path(temporary)
                runs.append(run(variant.strip(), seed=seed, profile=options.profile, folder=folder))
                print(runs[-1].row(), flush=True)
    print("\n" + "\n".join(verdicts(runs)))
    wanted = all(_lowest(item.last) >= GOAL for item in runs if item.variant in ("sparse", "shaped"))
    optimum = memoryless_optimum().value
    return 0 if wanted and all(item.best <= optimum for item in runs if item.variant == "control") else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
