"""Learning table: every trainable method at one budget of episodes, three seeds, on the small recurrent policy.

    python benchmarks/methods.py                                     all methods, three seeds; goes on where it stopped
    python benchmarks/methods.py --only rloo,gigpo --seeds 0,1 --steps 40
    python benchmarks/methods.py --text --hours 2                    the few that need a language model, on SmolLM2
    python benchmarks/methods.py --table                             only writes the page again

An update collects 32 episodes whatever the method: 4 tasks of 8 attempts, or 32 tasks of 1 for methods that compare no
attempts. Methods that learn from records get those of a finished run of `reinforce` with the same seed, and the reward
model of `rlhf_ppo` those of `grpo`. Every run is a process of its own; what is finished is kept in `--runs`, one line
each in results.jsonl with the commit it ran at, and an interrupted run is resumed. No setting was searched for: options
are the published ones unless the table says otherwise. A row of the page stays where `--runs` holds nothing for it, or
fewer seeds.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kifu.algorithms import ALGORITHMS, Algorithm, build_algorithm
from kifu.credit.branching import Independent
from kifu.credit.sources import FreshRollouts, RefreshedPairs, SuccessReplay
from kifu.evaluation import Interval, clustered_wilson, wilson
from kifu.monitor import read_metrics
from kifu.training.experiment.machine import this_cpu

TOP = Path(__file__).parents[1]
PAGE = TOP / "docs" / "results" / "methods.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
EPISODES, GROUP = 32, 8
SOURCE, OTHER_SEED = "reinforce", 1_000
"""Whose records the offline methods learn from."""
RANKED = "grpo"
"""Whose attempts, several at a task, a reward model is fitted to."""
TEXT_STEPS = 6

WORLDS: Mapping[str, Path] = {
    "key_door": TOP / "recipes" / "key_door.toml",
    "corridor": TOP / "recipes" / "corridor.toml",
    "key_door_text": TOP / "recipes" / "key_door_text.toml",
}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "agentic_reinforced_po": {"initial_rollouts": 4},
    "aepo": {"initial_rollouts": 4},
    "at2po": {"initial_rollouts": 4, "expansion_rounds": 2, "beam_size": 2},
    "tree_grpo": {"trees": 2, "rounds": 1, "expansions": 3},
    "mt_grpo": {"component": "clue"},
    "tara": {"component": "clue"},
    "rft": {"min_calls": 0},
    "dapo": {"refill": 1},
    "agentic_dpo": {"negatives": "recorded"},
}
"""Set so that a group has 8 attempts and a step no more of them, because the world has no such reward by default, or so
that nothing is sampled beside the records."""
FURTHER: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "agentic_dpo": ({"negatives": "sampled"},),
}
"""More option sets of a method; each has a row of its own."""
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "gigpo": ("corridor",),
    "graphgpo": ("corridor",),
    "graphhca": ("corridor",),
    "grpo": ("corridor",),
}
"""Further worlds in which states come again, with a method to compare with."""
TEXT = ("grpo", "gspo", "simpletir", "transitions", "trace_turn_credit")
"""On SmolLM2: methods whose mechanism is about many tokens or needs text, and the one to compare with."""
TIER_A = (
    *("reinforce", "rloo", "reinforce_pp", "ppo", "turn_ppo", "actor_critic", "grpo", "dr_grpo", "dapo", "gspo"),
    *("cispo", "maxrl", "gigpo", "mt_grpo", "agentic_reinforced_po", "agentic_replay_po", "at2po"),
    *("trace_turn_credit", "tara", "dupo", "transitions", "sft", "rft", "dpo", "agentic_dpo", "offline_awr"),
    *("rlhf_ppo", "rlvr"),
)
"""Every method that trains and is held to exact answers, `rlvr` too: what it pays tells it from `grpo`, and that must
be seen to learn as well. One whose facts this world does not offer stands in the table with what it asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run."""

    method: str
    world: str
    seed: int
    steps: int
    """Updates."""
    variant: int = 0
    """Which option set: 0 that of OPTIONS, then those of FURTHER."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.world}-{self.method}-{self.steps}-seed{self.seed}" + (f"-{self.variant}" if self.variant else "")

    @property
    def options(self) -> Mapping[str, Any]:
        """Of the method."""
        return option_sets(self.method)[self.variant]

    @property
    def source(self) -> "Job":
        """Whose records an offline method learns from: of another seed where it samples, so that no two share an id."""
        samples = isinstance(build_algorithm(self.method, self.options).plan.data, RefreshedPairs)
        seed = self.seed + (OTHER_SEED if samples else 0)
        return Job(method=SOURCE, world=self.world, seed=seed, steps=self.steps)

    def overrides(self, runs: Path) -> list[str]:
        """What is changed in the recipe."""
        options = self.options
        algorithm = build_algorithm(self.method, options)
        found = [f'credit.algorithm="{self.method}"', f"credit.options={_toml(options)}"]
        if self.world == "key_door_text":
            return [*found, f"update.steps={self.steps}", "machine.threads=1"]
        grouped = needs_groups(algorithm)
        size = GROUP if grouped else 1
        found += [
            f"update.group_size={size}",
            f"update.prompts_per_step={EPISODES // size}",
            "update.patience=100000",
            f"update.steps={self.steps}",
            "machine.threads=1",
        ]
        if not algorithm.plan.needs_value:
            found.append('environment.on_truncation="terminal"')  # no critic is trained; no attempt is cut here
        if self.world == "corridor":
            found += ["environment.task_limits.turns=12", "evaluation.tasks=64"]
        if isinstance(algorithm.plan.data, SuccessReplay):
            found.append('environment.splits={ train = "seed 0..7", held_out = "seed 5_000_000.." }')
        if is_offline(algorithm):
            source = runs / self.source.name
            outcome = "success" if algorithm.plan.demonstrations else "all"
            found.append(f'update.data={{ type = "stored", runs = ["{source.resolve()}"], outcome = "{outcome}" }}')
        if self.method == "rlhf_ppo":
            source = runs / Job(method=RANKED, world=self.world, seed=self.seed, steps=self.steps).name
            fit = "hidden = 32, steps = 300, batch = 32, learning_rate = 1e-2"
            found.append(f'credit.reward_model={{ runs = ["{source.resolve()}"], {fit} }}')
        return found


def option_sets(method: str) -> tuple[Mapping[str, Any], ...]:
    """The option sets a method is run with."""
    return (OPTIONS.get(method, {}), *FURTHER.get(method, ()))


def needs_groups(algorithm: Algorithm) -> bool:
    """Whether several attempts at one task are compared, or branch off each other."""
    return algorithm.plan.needs_group or not isinstance(algorithm.plan.rollout, Independent)


def is_offline(algorithm: Algorithm) -> bool:
    """Whether nothing is sampled."""
    plan = algorithm.plan
    return plan.demonstrations or not isinstance(plan.data, FreshRollouts | SuccessReplay)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def jobs(methods: Sequence[str], seeds: Sequence[int], *, steps: int, text: bool) -> Iterator[Job]:
    """Every run, the source of the offline methods first."""
    if text:
        yield from (
            Job(method=method, world="key_door_text", seed=seed, steps=TEXT_STEPS)
            for seed in seeds
            for method in methods
        )
        return
    ordered = sorted(methods, key=lambda name: (name != SOURCE, is_offline(build_algorithm(name)), name))
    for seed in seeds:
        planned = [
            Job(method=method, world=world, seed=seed, steps=steps, variant=variant)
            for method in ordered
            for world in ("key_door", *ELSEWHERE.get(method, ()))
            for variant in range(len(option_sets(method)))
        ]
        offline = [job for job in planned if is_offline(build_algorithm(job.method, job.options))]
        yield from dict.fromkeys([*(job.source for job in offline), *planned])


def run(job: Job, runs: Path) -> dict[str, Any]:
    """Train in a process of its own, or go on with what stopped; what came of it, failures included."""
    out = runs / job.name
    kifu = [sys.executable, "-c", "from kifu.cli import main; main()"]
    if (out / "run.json").exists():
        command = [*kifu, "resume", str(out), "--json"]
    else:
        command = [*kifu, "train", str(WORLDS[job.world]), "--seed", str(job.seed), "--out", str(out), "--json"]
        command += [word for override in job.overrides(runs) for word in ("--set", override)]
    began, commit = time.perf_counter(), commit_of(TOP)
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=_environment())
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    found: dict[str, Any] = {
        "method": job.method,
        "world": job.world,
        "seed": job.seed,
        "steps": job.steps,
        "options": dict(job.options),
        "commit": commit,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.perf_counter() - began,
    }
    code = os.waitstatus_to_exitcode(status)
    if code:
        lines = [line for line in said.splitlines() if line.startswith("error:")]
        return {**found, "error": lines[-1].removeprefix("error: ") if lines else f"ended with status {code}"}
    return {**found, **_measured(out)}


def commit_of(folder: Path) -> str | None:
    """The commit of the code in a folder, with a plus behind it where files differ; None outside of a repository."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    found = git("rev-parse", "--short", "HEAD")
    return None if found is None else found + ("+" if git("status", "--porcelain", "--", "src", "recipes") else "")


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _measured(out: Path) -> dict[str, Any]:
    facts = json.loads((out / "run.json").read_text())
    rows = [row for row in read_metrics(out / "metrics.jsonl") if row.get("success") is not None or "groups" in row]
    curve = [row["success"] for row in rows if row.get("success") is not None]
    counts = {
        name: sum(row.get(key) or 0 for row in rows)
        for name, key in (
            ("groups", "groups"),
            ("informative", "informative_groups"),
            ("branches", "branches"),
            ("replayed", "replayed"),
            ("clipped", "objective/clipped_tokens"),
            ("tokens", "objective/tokens"),
        )
    }
    tasks = facts["evaluations"][-1]["tasks"]
    return {
        "before": facts["evaluations"][0]["success"]["mean"],
        "after": facts["evaluations"][-1]["success"]["mean"],
        "tasks": tasks,
        "curve": sum(curve) / len(curve) if curve else None,
        "counts": counts,
    }


def interval(rows: Sequence[Mapping[str, Any]]) -> Interval:
    """Success over all seeds; tries of one seed are not independent, so seeds are the clusters where there are two."""
    trials = np.array([int(row["tasks"]) for row in rows])
    successes = np.array([round(float(row["after"]) * int(row["tasks"])) for row in rows])
    if len(rows) == 1:
        return wilson(float(successes[0]), float(trials[0]))
    return clustered_wilson(successes, trials)


def row_of(method: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A line of the table."""
    done = sorted((row for row in rows if "error" not in row), key=lambda row: row["seed"])
    options = _shown(rows[0]["options"])
    failed = sorted({str(row["error"]).split("; ")[0] for row in rows if "error" in row})
    if not done:
        return f"| `{method}`{options} | {failed[0]} | | | | |"
    found = interval(done)
    after = " ".join(f"{row['after']:.2f}" for row in done)
    curves = [row["curve"] for row in done if row["curve"] is not None]
    curve = f"{sum(curves) / len(curves):.2f}" if curves else "nothing sampled"
    cpu_s = sum(row["cpu_s"] for row in done) / len(done)
    note = f"; {len(rows) - len(done)} failed: {failed[0]}" if failed else ""
    return (
        f"| `{method}`{options} | {after} | {found.mean:.2f} [{found.low:.2f}, {found.high:.2f}] | {curve} "
        f"| {_deciding(done)}{note} | {cpu_s:.0f} |"
    )


def _shown(options: Mapping[str, Any]) -> str:
    return "" if not options else " (" + ", ".join(f"{key} {value}" for key, value in options.items()) + ")"


def _deciding(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the parts that tell methods apart did, over all seeds."""
    total = {name: sum(row["counts"][name] for row in rows) for name in rows[0]["counts"]}
    parts = []
    if total["groups"] and total["informative"] < total["groups"]:
        parts.append(f"{total['informative'] / total['groups']:.0%} of groups informative")
    if total["tokens"] and total["clipped"]:
        parts.append(f"{total['clipped'] / total['tokens']:.2%} of tokens at a bound")
    parts += [f"{total[name]:.0f} {name}" for name in ("branches", "replayed") if total[name]]
    return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The rows of one world and budget, by what stands in their first cell."""

    world: str
    steps: str
    seeds: frozenset[int]
    rows: Mapping[str, str]


HEAD = (
    "| method | success after, by seed | mean [95 %, seeds as clusters] | mean success while training "
    "| what its parts did | CPU-s a run |",
    "| --- | --- | --- | --: | --- | --: |",
)


def sections_of(results: Sequence[Mapping[str, Any]]) -> list[Section]:
    """The results by world and budget."""
    found = []
    for world, steps in dict.fromkeys((row["world"], row["steps"]) for row in results):
        here = [row for row in results if (row["world"], row["steps"]) == (world, steps)]
        rows = {}
        for method, options in sorted({(row["method"], _shown(row["options"])) for row in here}):
            mine = [row for row in here if (row["method"], _shown(row["options"])) == (method, options)]
            rows[f"`{method}`{options}"] = row_of(method, mine)
        seeds = frozenset(int(row["seed"]) for row in here)
        found.append(Section(world=world, steps=str(steps), seeds=seeds, rows=rows))
    return found


def parse(text: str) -> list[Section]:
    """The sections of a page, from what stands between its marks."""
    found = []
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        told = re.search(r"^(.+) updates; seeds (.+)\.$", part, re.M)
        if told is None:
            raise SystemExit(f"the page's section `{part.splitlines()[0]}` does not say its updates and seeds")
        lines = [line for line in part.splitlines() if line.startswith("| `")]
        found.append(
            Section(
                world=re.split(r"[ ,]", part.splitlines()[0])[0],
                steps=told[1],
                seeds=frozenset(map(int, told[2].split(", "))),
                rows={line.split("|")[1].strip(): line for line in lines},
            )
        )
    return found


def merged(old: Sequence[Section], new: Sequence[Section]) -> list[Section]:
    """The page's sections with new rows put in; a row of more seeds than there are results for stays."""
    found = {(one.world, one.steps): one for one in old}
    for one in new:
        known = found.get((one.world, one.steps))
        if known is None:
            found[one.world, one.steps] = one
            continue
        taken = {name: row for name, row in one.rows.items() if _seeds(row) >= _seeds(known.rows.get(name, ""))}
        rows = dict(sorted({**known.rows, **taken}.items()))
        found[one.world, one.steps] = Section(
            world=one.world, steps=one.steps, seeds=known.seeds | (one.seeds if taken else frozenset()), rows=rows
        )
    return list(found.values())


def _seeds(row: str) -> int:
    """Seeds that a row tells a success of."""
    cells = row.split("|")
    return len(re.findall(r"\d\.\d\d", cells[2])) if len(cells) > 3 and cells[3].strip() else 0


def table(results: Sequence[Mapping[str, Any]], *, before: str = "") -> str:
    """What the page holds between its marks.

    Args:
        results: one a run.
        before: what it holds so far; its rows stay where there is nothing newer.
    """
    parts, seen = [], set[str]()
    for one in merged(parse(before), sections_of(results)):
        title = f"{one.world}, {one.steps} updates" if one.world in seen else one.world
        seen.add(one.world)
        seeds = ", ".join(map(str, sorted(one.seeds)))
        parts += [f"## {title}", "", f"{one.steps} updates; seeds {seeds}.", "", *HEAD, *one.rows.values(), ""]
    cpu = this_cpu()
    machine = f"Machine: {cpu.name}, {cpu.cores} cores, shared with other work; CPU seconds are the process's own."
    machines = [line for line in before.splitlines() if line.startswith("Machine: ")]
    parts += [*dict.fromkeys([*machines, machine] if results else machines), ""]
    return "\n".join(parts)


def write(page: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Put the results between the marks of a page, into what stands there; a new page has nothing else."""
    old = page.read_text() if page.exists() else f"# What every method learns\n\n{BEGIN}\n{END}\n"
    before, _, rest = old.partition(BEGIN)
    held, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table(results, before=held)}{END}{after}")


Key = tuple[str, str, int, int, str]


def key_of(row: Mapping[str, Any]) -> Key:
    """Which run a result is of."""
    return row["world"], row["method"], row["seed"], row["steps"], json.dumps(row["options"], sort_keys=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Results so far, the latest of each run."""
    lines = path.read_text().splitlines() if path.exists() else []
    latest = {key_of(row): row for row in map(json.loads, lines)}
    return list(latest.values())


def main() -> int:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="methods, separated by commas")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=150, help="updates of 32 episodes")
    parser.add_argument("--text", action="store_true", help="the methods of TEXT on SmolLM2 instead")
    parser.add_argument("--hours", type=float, default=4.0, help="no run begins after this")
    parser.add_argument("--runs", type=Path, default=TOP / "runs" / "methods")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--again", action="store_true", help="repeat runs that failed")
    asked = parser.parse_args()
    methods = asked.only.split(",") if asked.only else [*(TEXT if asked.text else TIER_A)]
    methods = [name for name in methods if name in ALGORITHMS]
    asked.runs.mkdir(parents=True, exist_ok=True)
    state = asked.runs / "results.jsonl"
    known = {key_of(row): row for row in read(state)}
    began = time.monotonic()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    for job in () if asked.table else jobs(methods, seeds, steps=asked.steps, text=asked.text):
        named = {"world": job.world, "method": job.method, "seed": job.seed, "steps": job.steps}
        old = known.get(key_of({**named, "options": job.options}))
        if old is not None and not (asked.again and "error" in old):
            continue
        if time.monotonic() - began > 3600 * asked.hours:
            print("out of time; the same command goes on", flush=True)
            break
        found = run(job, asked.runs)
        with state.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{job.name}  {found.get('after', found.get('error'))}  {found['wall_s']:.0f} s", flush=True)
    found_rows = [row for row in read(state) if row["seed"] < OTHER_SEED]
    results = [row for row in found_rows if asked.text or row["world"] != "key_door_text" or asked.table]
    if results:
        write(asked.page, results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
