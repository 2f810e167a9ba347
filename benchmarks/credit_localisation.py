"""Share of each method's credit that falls on the one act that decided a long episode, against exact values.

    python benchmarks/credit_localisation.py [--groups 40] [--seeds 0,1,2] [--out docs/results/credit_localisation.md]

An episode has 50 acts. At one planted step an act is fatal with chance 0.2: the episode fails for certain. Every other
act is careful or sloppy, and each sloppy one costs 0.008 of the chance to succeed. The reward is 0 or 1 and comes at
the end.

The share of a trajectory in which the fatal act was taken is |credit of that act| over the sum of |credit|. Methods
that read more than rewards are given exact numbers, of one of two kinds: `seen`, they depend on the acts so far;
`hidden`, they depend on what the world has shown, which is nothing but the number of the step. The table stands
between two marks of the page, so that the text around it stays.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kifu.algorithms import ALGORITHMS, Algorithm, Source, TurnCredit, build_algorithm
from kifu.credit import BranchPoint, Episode, TurnFacts
from kifu.credit.branching import Independent
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.evaluation import Interval

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
VARIANTS: Mapping[str, tuple[str, Mapping[str, float]]] = {"`turn_ppo`, lam = 0": ("turn_ppo", {"lam": 0.0})}
"""Rows besides the methods as published: method and options."""
FLOOR = 1e-3
"""Smallest probability whose logarithm is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Acts are 1 (fatal at the planted step, sloppy elsewhere) or 0."""

    planted: int
    """Step of the fatal act, from 1."""
    horizon: int = 50
    fatal_chance: float = 0.2
    sloppy_chance: float = 0.5
    base: float = 0.9
    cost: float = 0.008

    def chance(self, step: int) -> float:
        """Of act 1 at a step, from 0."""
        return self.fatal_chance if step == self.planted - 1 else self.sloppy_chance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Acted:
    """One trajectory: ``[K]`` acts, and whether it succeeded."""

    id: str
    acts: npt.NDArray[np.int64]
    success: bool
    parent: str | None = None
    branch_at: int = 0


@cache
def values(world: World) -> npt.NDArray[np.float64]:
    """``[K + 1][2][K + 1]`` chance of success before each step, by whether the fatal act fell and the sloppy ones."""
    count = world.horizon
    found = np.zeros((count + 1, 2, count + 1))
    found[count, 0] = np.clip(world.base - world.cost * np.arange(count + 1), 0.0, 1.0)
    for step in range(count - 1, -1, -1):
        p = world.chance(step)
        for fatal in (0, 1):
            for sloppy in range(step + 1):
                after = found[step + 1]
                one = after[1, sloppy] if step == world.planted - 1 else after[fatal, sloppy + 1]
                found[step, fatal, sloppy] = p * one + (1 - p) * after[fatal, sloppy]
    return found


def on_path(world: World, table: npt.NDArray[np.float64], acts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """``[K + 1]`` value before each step of a trajectory and after the last."""
    fatal, sloppy, found = 0, 0, [table[0, 0, 0]]
    for step, act in enumerate(acts.tolist()):
        if step == world.planted - 1:
            fatal = max(fatal, act)
        else:
            sloppy += act
        found.append(table[step + 1, fatal, sloppy])
    return np.array(found)


def sample_group(world: World, *, size: int, branched: bool, random: np.random.Generator) -> list[Acted]:
    """Attempts at one task; the later half of a branched group leaves the earlier half at a uniformly drawn step."""
    found: list[Acted] = []
    chances = np.array([world.chance(step) for step in range(world.horizon)])
    for member in range(size):
        acts = (random.random(world.horizon) < chances).astype(np.int64)
        parent, at = None, 0
        if branched and member >= size // 2:
            source = found[member - size // 2]
            parent, at = source.id, int(random.integers(1, world.horizon))
            acts[:at] = source.acts[:at]
        fatal = bool(acts[world.planted - 1])
        sloppy = int(acts.sum()) - int(fatal)
        success = not fatal and random.random() < world.base - world.cost * sloppy
        found.append(Acted(id=f"T{member}", acts=acts, success=bool(success), parent=parent, branch_at=at))
    return found


def episode_of(world: World, table: npt.NDArray[np.float64], acted: Acted, *, seen: bool) -> Episode:
    """The trajectory with every fact a method may read, exact under its kind of knowledge."""
    count = world.horizon
    value = on_path(world, table, acted.acts) if seen else np.full(count + 1, table[0, 0, 0])
    fatal_K = np.concatenate([[0], np.cumsum(acted.acts * (np.arange(count) == world.planted - 1))])[:-1]
    gold = [log(max(v, FLOOR)) for v in (*value[:-1], float(acted.success) * (1 - FLOOR))]
    turns = []
    for step, act in enumerate(acted.acts.tolist()):
        p = world.chance(step) if act else 1 - world.chance(step)
        entropy = -sum(q * log(q) for q in (world.chance(step), 1 - world.chance(step)))
        is_known_fatal = step == world.planted - 1 and (seen or step == count - 1)
        is_right = not act if step != world.planted - 1 or is_known_fatal else True
        turns.append(
            TurnFacts(
                num_tokens=1,
                state=f"{step}/{int(fatal_K[step])}" if seen else str(step),
                entropy=entropy,
                gold_logprob=gold[step],
                hindsight_logprob=log(max(p * _likelihood(acted.success, value, step), FLOOR)),
                rewards={"check": 1.0} if is_right else {},
                logprobs_N=np.array([log(p)]),
                reference_logprobs_N=np.array([log(p)]),
                entropies_N=np.array([entropy]),
                values_N=np.array([value[step]]),
            )
        )
    rewards = np.zeros(count)
    rewards[-1] = float(acted.success)
    return Episode(
        rewards_K=rewards,
        terminated=True,
        values_K=value[:-1],
        id=acted.id,
        outcome=float(acted.success),
        success=acted.success,
        turns=tuple(turns),
        tree=acted.id if acted.parent is None else acted.parent,
        branch=None if acted.parent is None else BranchPoint(parent=acted.parent, turn=acted.branch_at),
        final_gold_logprob=gold[-1],
    )


def _likelihood(success: bool, value: npt.NDArray[np.float64], step: int) -> float:
    """P(outcome | act) / P(outcome): what turns the act's probability into that in hindsight (Bayes)."""
    before, after = float(value[step]), float(value[step + 1])
    return (after / max(before, FLOOR)) if success else (1 - after) / max(1 - before, FLOOR)


def credit_of(credit: TurnCredit) -> npt.NDArray[np.float64]:
    """``[K]`` credit of the only token of each turn; 0 where the turn is masked."""
    kept = [credit.keeps(turn) for turn in range(credit.advantages_K.size)]
    return np.array([float(credit.tokens(turn, 1)[0]) if keeps else 0.0 for turn, keeps in enumerate(kept)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a method did with the fatal acts of one world."""

    share: Interval | None
    """None: it gave none of these trajectories any credit."""
    first: float
    """Of the credited trajectories, those whose largest |credit| is the planted act's alone."""
    silent: float
    """Of trajectories with the fatal act, those without any credit."""


def share_of(credit: npt.NDArray[np.float64], planted: int) -> tuple[float, bool] | None:
    """Share of |credit| on an act, and whether it is the largest alone; None when all credit is 0."""
    size = np.abs(credit)
    if not size.any():
        return None
    others = np.delete(size, planted)
    return float(size[planted] / size.sum()), bool(size[planted] > others.max(initial=0.0) * (1 + 1e-9))


def measure(
    algorithm: Algorithm | None, world: World, *, seen: bool, seeds: Sequence[int], groups: int, size: int = 8
) -> Found:
    """Shares over all groups; without a method, those of the exact value differences."""
    branched = algorithm is not None and not isinstance(algorithm.plan.rollout, Independent)
    per_group: list[list[float]] = []
    firsts: list[bool] = []
    silent = fatal = 0
    for seed in seeds:
        for number in range(groups):
            group = _group(world, size=size, branched=branched, seed=seed, number=number)
            if algorithm is None:
                credits = [np.diff(on_path(world, values(world), acted.acts)) for acted in group]
            else:
                credits = _credits(
                    algorithm, _episodes(world, size=size, branched=branched, seed=seed, number=number, seen=seen)
                )
            shares = []
            for acted, credit in zip(group, credits, strict=True):
                if not acted.acts[world.planted - 1]:
                    continue
                fatal += 1
                found = share_of(credit, world.planted - 1)
                if found is None:
                    silent += 1
                else:
                    shares.append(found[0])
                    firsts.append(found[1])
            per_group.append(shares)
    known = [shares for shares in per_group if shares]
    return Found(
        share=_over_groups(known) if known else None,
        first=float(np.mean(firsts)) if firsts else 0.0,
        silent=silent / max(fatal, 1),
    )


def _credits(algorithm: Algorithm, episodes: Sequence[Episode]) -> list[npt.NDArray[np.float64]]:
    found = algorithm.credit(episodes, RewardRules())
    return [np.zeros(item.num_turns) for item in episodes] if found is None else [credit_of(item) for item in found]


@cache
def _group(world: World, *, size: int, branched: bool, seed: int, number: int) -> list[Acted]:
    """The same attempts for every method."""
    return sample_group(world, size=size, branched=branched, random=np.random.default_rng([seed, number]))


@cache
def _episodes(world: World, *, size: int, branched: bool, seed: int, number: int, seen: bool) -> list[Episode]:
    table = values(world)
    group = _group(world, size=size, branched=branched, seed=seed, number=number)
    return [episode_of(world, table, acted, seen=seen) for acted in group]


def _over_groups(shares: Sequence[Sequence[float]], *, draws: int = 1000) -> Interval:
    """Mean over trajectories with a 95 % percentile bootstrap over groups."""
    totals, counts = np.array([sum(item) for item in shares]), np.array([len(item) for item in shares])
    drawn = np.random.default_rng(0).integers(0, len(shares), (draws, len(shares)))
    means = totals[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(mean=float(totals.sum() / counts.sum()), low=float(low), high=float(high))


def columns(horizon: int = 50) -> Mapping[str, tuple[World, bool]]:
    """The worlds of the table, each with what helpers know."""
    late, early = World(planted=horizon, horizon=horizon), World(planted=max(horizon // 10, 1), horizon=horizon)
    return {
        f"step {late.planted}, seen": (late, True),
        f"step {late.planted}, hidden": (late, False),
        f"step {early.planted}, seen": (early, True),
        f"step {early.planted}, hidden": (early, False),
    }


def render(*, horizon: int, seeds: Sequence[int], groups: int) -> str:
    """The table, and what could not be run with the reason."""
    worlds = columns(horizon)
    lines = ["| method | " + " | ".join(worlds) + " |", "| --- |" + " --- |" * len(worlds)]
    lines.append(_line("exact value difference", [_cell(None, at, seeds, groups) for at in worlds.values()]))
    left_out: list[str] = []
    for name in ALGORITHMS:
        algorithm = build_algorithm(name)
        if algorithm.card.data is Source.FIXED or algorithm.plan.demonstrations:
            left_out.append(f"- `{name}`: learns from a fixed set, not from attempts")
            continue
        try:
            lines.append(_line(f"`{name}`", [_cell(algorithm, at, seeds, groups) for at in worlds.values()]))
        except ArgumentError as problem:
            left_out.append(f"- `{name}`: {problem}")
    for label, (name, options) in VARIANTS.items():
        algorithm = build_algorithm(name, options)
        lines.append(_line(label, [_cell(algorithm, at, seeds, groups) for at in worlds.values()]))
    size = f"{len(seeds)} seeds ({', '.join(map(str, seeds))}) of {groups} groups of 8, {horizon} acts"
    return "\n".join([size, "", *lines, *(["", "Not in the table:", "", *left_out] if left_out else [])])


def _cell(algorithm: Algorithm | None, at: tuple[World, bool], seeds: Sequence[int], groups: int) -> str:
    world, seen = at
    found = measure(algorithm, world, seen=seen, seeds=seeds, groups=groups)
    if found.share is None:
        return "no credit"
    text = f"{found.share.mean:.3f} [{found.share.low:.3f}, {found.share.high:.3f}], first {found.first:.2f}"
    return text if found.silent == 0 else f"{text}, silent {found.silent:.2f}"


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def write(page: Path, table: str) -> None:
    """Put the table between the marks of a page; a page without them gets them at its end."""
    text = page.read_text() if page.exists() else "# Credit localisation\n"
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--horizon", type=int, default=50)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    table = render(horizon=asked.horizon, seeds=[int(seed) for seed in asked.seeds.split(",")], groups=asked.groups)
    print(table)
    if asked.out is not None:
        write(asked.out, table)


if __name__ == "__main__":
    main()
