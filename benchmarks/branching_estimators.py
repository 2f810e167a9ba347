"""Mean and variance of updates whose rollouts branch, against the exact gradient, by Monte Carlo.

    python benchmarks/branching_estimators.py [--updates 3000] [--only tree_grpo] [--out docs/results/estimators.md]

The worlds, the policy and the way from a group to its gradient are those of `estimators.py`; what is new is how a group
comes about. A branch leaves in the state before a turn and goes on as the world and the policy say. Whether, where and
how often is decided by the library's own rules. Every method is also run on whole rollouts of the same number, so that
its credit and its branches can be told apart, and with sums over tokens and undivided returns, where whole rollouts
have the direction of the gradient. A shared prefix is acted out once and counts once among the environment's steps; it
is trained once a leaf, as the methods say. Intervals are 95 percent, by the jackknife over blocks of updates, which
also takes off the bias of first order. A last table gives a budget to some of several tasks, in full.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, NamedTuple, assert_never

import numpy as np
from estimators import Climb, Moments, Place, episodes_of, gradients, start, update_moments, worlds, write

from kifu.algorithms import Algorithm, build_algorithm
from kifu.algorithms.trace_budget import TraceBudget
from kifu.credit import Doubles
from kifu.credit.branching import (
    Allocated,
    EntropyBranching,
    Fork,
    Independent,
    Path,
    PreMonitored,
    RolloutPlan,
    TreeExpansion,
    branch_after_results,
    expand_tree,
    first_rollouts,
)
from kifu.credit.budget import allocate_prefixes
from kifu.lab import PathTable, enumerate_paths, exact_gradient, path_probabilities, policy_rows

MARKS = "<!-- branching: begin -->", "<!-- branching: end -->"
SIZE = 8
"""Rollouts of a group."""
BLOCKS = 20
QUANTILE = 2.093
"""0.975 of Student's t with 19 degrees of freedom."""
PLAIN = {"std": "none", "average": "sum"}
TASKS: Mapping[str, tuple[float, ...]] = {
    "anywhere": (1.0, 1.0, 1.0, 1.0),
    "1 or higher": (0.0, 1.0, 1.0, 1.0),
    "2 or higher": (0.0, 0.0, 1.0, 1.0),
    "3": (0.0, 0.0, 0.0, 1.0),
}
"""Climbs of one policy, which sees the height alone, by the height where stopping pays."""
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "`agentic_reinforced_po`": ("agentic_reinforced_po", {"initial_rollouts": 4}),
    "`aepo`": ("aepo", {}),
    "`tree_grpo`": ("tree_grpo", {"trees": 2, "rounds": 1, "expansions": 3}),
    "`at2po`": ("at2po", {"initial_rollouts": 4, "expansion_rounds": 2, "beam_size": 2}),
    "`at2po`, `diff_parent`": (
        "at2po",
        {"initial_rollouts": 4, "expansion_rounds": 2, "beam_size": 2, "node_advantage": "diff_parent"},
    ),
    "`trace_budget`": ("trace_budget", {"budget": 8, "root_share": 0.5, "rollouts": 4}),
}
"""Label, name, and options that make groups of 8, half of them whole where the method fixes that."""


@dataclass(slots=True)
class Forest:
    """Draws groups in one world under one policy."""

    table: PathTable
    logits_RA: Doubles
    rng: np.random.Generator
    chance_P: Doubles = field(init=False)
    entropies_PK: list[tuple[float, ...]] = field(init=False)
    """Nats, of the policy at every turn of every trajectory."""
    after: dict[int, tuple[list[int], Doubles]] = field(init=False, default_factory=dict)
    """By history: the trajectories that go through it, and their chance from there on, added up."""

    def __post_init__(self) -> None:
        rows_RA = policy_rows(self.table, self.logits_RA)
        entropy_R = -np.where(rows_RA > 0, rows_RA * np.log(np.where(rows_RA > 0, rows_RA, 1.0)), 0.0).sum(axis=1)
        self.chance_P = path_probabilities(self.table, self.logits_RA)
        self.entropies_PK = [tuple(entropy_R[list(path.rows_T)].tolist()) for path in self.table.paths]
        for node in range(self.table.num_nodes):
            self._prepare(node, [at for at, path in enumerate(self.table.paths) if node in path.nodes_T])
        self._prepare(-1, list(range(len(self.table.paths))))

    def _prepare(self, node: int, through: list[int]) -> None:
        chances = self.chance_P[through]
        self.after[node] = through, np.cumsum(chances / chances.sum())

    def draw(self, node: int = -1) -> int:
        """A trajectory from the world's start, or one that goes on from a history."""
        through, total = self.after[node]
        return through[min(int(np.searchsorted(total, self.rng.random(), side="right")), len(through) - 1)]

    def group(self, plan: RolloutPlan, size: int) -> tuple[Place, ...]:
        """One group, in member order."""
        match plan:
            case Independent():
                return tuple(self._whole([], size))
            case EntropyBranching():
                return tuple(self._by_entropy(plan, size))
            case TreeExpansion():
                return tuple(self._by_expansion(plan, size))
            case Allocated():
                return tuple(self._by_disagreement(plan))
            case _ as unreachable:
                assert_never(unreachable)

    def paths(self, places: Sequence[Place]) -> list[Path]:
        """The group as the rules of branching look at it."""
        return [
            Path(
                id=f"m{at}",
                heads_K=self.entropies_PK[place.path],
                entropies_K=self.entropies_PK[place.path],
                parent=None if place.parent is None else f"m{place.parent}",
                own=place.own,
            )
            for at, place in enumerate(places)
        ]

    def _whole(self, places: list[Place], size: int) -> list[Place]:
        return places + [Place(path=self.draw()) for _ in range(size - len(places))]

    def _branches(self, places: list[Place], forks: Sequence[Fork]) -> list[Place]:
        found = []
        for fork in forks:
            parent = int(fork.parent.removeprefix("m"))
            node = self.table.paths[places[parent].path].nodes_T[fork.turn]
            found.append(Place(path=self.draw(node), parent=parent, own=fork.turn))
        return places + found

    def _uniform(self, _round: int, _draw: int) -> float:
        return float(self.rng.random())

    def _by_entropy(self, plan: EntropyBranching, size: int) -> list[Place]:
        places = self._whole([], 1 if isinstance(plan.start, PreMonitored) else 0)
        actions = self.table.allowed_RA.shape[1]
        first = self.paths(places)[0] if places else None
        places = self._whole(places, first_rollouts(plan, first, budget=size, vocabulary=actions))
        turn, grown = 1, 0
        while len(places) < size and turn < max(len(self.entropies_PK[place.path]) for place in places):
            forks = branch_after_results(
                plan,
                self.paths(places),
                turn=turn,
                room=size - len(places),
                vocabulary=actions,
                uniform=self._uniform,
                grown=grown,
            )
            places = self._branches(places, forks)
            grown, turn = grown + 1 if forks else 0, turn + 1
        return self._whole(places, size)

    def _by_expansion(self, plan: TreeExpansion, size: int) -> list[Place]:
        places = self._whole([], min(plan.chains, size))
        for number in range(plan.rounds):
            paths, room = self.paths(places), size - len(places)
            forks = expand_tree(plan, paths, number=number, room=room, uniform=self._uniform)
            places = self._branches(places, forks)
        return self._whole(places, size)

    def _by_disagreement(self, plan: Allocated) -> list[Place]:
        """One task: its roots, then the turns whose continuation should end otherwise.

        The prediction for the task, made of earlier steps in a run, is its exact rate of success here.
        """
        places = self._whole([], plan.roots)
        won = [sum(path.rewards_T) == 1.0 for path in self.table.paths]
        rate = float(self.chance_P[won].sum())
        visits = [(at, turn) for at, place in enumerate(places) for turn in range(1, len(self._rows(place)))]
        predicted = []
        for at, turn in visits:
            here = self._rows(places[at])[turn]
            ended = [won[place.path] for place in places if here in self._rows(place)]
            predicted.append((sum(ended) + plan.prior * rate) / (len(ended) + plan.prior))
        seen = [float(won[places[at].path]) for at, _ in visits]
        counts = allocate_prefixes(seen, predicted, budget=plan.budget - plan.roots)
        forks = [Fork(f"m{at}", turn) for (at, turn), count in zip(visits, counts, strict=True) for _ in range(count)]
        return self._branches(places, forks)

    def _rows(self, place: Place) -> tuple[int, ...]:
        return self.table.paths[place.path].rows_T


class Block(NamedTuple):
    """Means over some updates."""

    mean_RA: Doubles
    square: float
    """Of the gradient's length."""
    steps: float
    trained: float
    """Turns that are trained; those that are not steps are copies of shared ones."""


def sampled(forest: Forest, algorithm: Algorithm, *, plan: RolloutPlan, size: int, updates: int) -> tuple[Block, ...]:
    """`BLOCKS` blocks of updates of one group each, credited by the method.

    Args:
        forest: draws the groups.
        algorithm: credits and reduces them.
        plan: how the groups grow; the method's own, or another.
        size: of a group.
        updates: in all.
    """
    episodes = [episodes_of(forest.table, forest.logits_RA, member=member) for member in range(size)]
    logits = (forest.logits_RA, forest.logits_RA)
    found = []
    for _ in range(BLOCKS):
        groups = [forest.group(plan, size) for _ in range(max(updates // BLOCKS, 1))]
        slopes_URA = gradients(forest.table, algorithm, groups, episodes=episodes, logits=logits)
        trained = sum(len(forest.entropies_PK[place.path]) for group in groups for place in group)
        copied = sum(place.own for group in groups for place in group)
        found.append(
            Block(
                mean_RA=slopes_URA.mean(axis=0),
                square=float((slopes_URA**2).sum(axis=(1, 2)).mean()),
                steps=(trained - copied) / len(groups),
                trained=trained / len(groups),
            )
        )
    return tuple(found)


def together(blocks: Sequence[Block]) -> Moments:
    """Moments over some blocks of equally many updates."""
    mean_RA: Doubles = np.mean([block.mean_RA for block in blocks], axis=0)
    square = float(np.mean([block.square for block in blocks]))
    return Moments(
        mean_RA=mean_RA,
        variance=max(square - float((mean_RA**2).sum()), 0.0),
        steps=float(np.mean([block.steps for block in blocks])),
    )


class Interval(NamedTuple):
    """An estimate with the half width of its interval."""

    middle: float
    half: float


def jackknife(blocks: Sequence[Block], figure: Callable[[Moments], float]) -> Interval:
    """A figure of the moments, without the bias of first order, and 95 percent around it."""
    left_B = np.array([figure(together([*blocks[:at], *blocks[at + 1 :]])) for at in range(len(blocks))])
    count, mean = len(blocks), float(left_B.mean())
    error = float(np.sqrt((count - 1) / count * ((left_B - mean) ** 2).sum()))
    return Interval(count * figure(together(blocks)) - (count - 1) * mean, QUANTILE * error)


def cells(blocks: Sequence[Block], exact_RA: Doubles) -> list[str]:
    """Cosine, length and noise, each with its interval."""
    found = [
        (4, jackknife(blocks, lambda moments: moments.compared(exact_RA).cosine)),
        (3, jackknife(blocks, lambda moments: moments.compared(exact_RA).length)),
        (2, jackknife(blocks, lambda moments: moments.compared(exact_RA).noise)),
    ]
    return [f"{figure.middle:.{digits}f} ± {figure.half:.{digits}f}" for digits, figure in found]


def rows(names: Sequence[str], *, updates: int, extra: Mapping[str, Any]) -> list[str]:
    """Every method on its own rollouts and on whole ones, in both worlds.

    Args:
        names: methods.
        updates: drawn for every cell.
        extra: options of all methods.
    """
    lines = [
        "| method | rollouts | copied | corridor: cosine | length | noise | climb: cosine | length | noise |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for label, (name, options) in METHODS.items():
        if name not in names:
            continue
        algorithm = build_algorithm(name, {**options, **extra})
        for how, plan in (("its own", algorithm.plan.rollout), ("whole", Independent())):
            told: list[str] = []
            shares: list[str] = []
            for seed, table in enumerate(worlds().values()):
                logits_RA = start(table)
                forest = Forest(table, logits_RA, np.random.default_rng(seed))
                blocks = sampled(forest, algorithm, plan=plan, size=SIZE, updates=updates)
                told += cells(blocks, exact_gradient(table, logits_RA, gamma=1.0))
                shares.append(f"{1.0 - sum(b.steps for b in blocks) / sum(b.trained for b in blocks):.2f}")
            lines.append(f"| {label} | {how} | {', '.join(shares)} | " + " | ".join(told) + " |")
    return lines


class Step(NamedTuple):
    """What tasks a step tries, and its moments."""

    rollouts: tuple[int, ...]
    """Of each task."""
    moments: Moments


def tasks() -> dict[str, PathTable]:
    """Every task's trajectories; their policies have equal tables."""
    return {name: enumerate_paths(Climb(pays=pays), max_steps=4) for name, pays in TASKS.items()}


def success(table: PathTable, logits_RA: Doubles) -> float:
    """Chance of a return of 1."""
    won = [sum(path.rewards_T) == 1.0 for path in table.paths]
    return float(path_probabilities(table, logits_RA)[won].sum())


def allocated(tables: Sequence[PathTable], algorithm: Algorithm, *, logits_RA: Doubles, budget: int) -> Step:
    """A step over several tasks, enumerated: equally many rollouts for each, or as the method allocates its roots.

    Args:
        tables: of the tasks.
        algorithm: averages over trajectories of sums, so that groups of equal size weigh the same.
        logits_RA: the policy that samples and is updated.
        budget: rollouts of the step.
    """
    counts = (budget // len(tables),) * len(tables)
    if isinstance(algorithm, TraceBudget):
        counts = algorithm.roots([success(table, logits_RA) for table in tables])
    parts = [
        update_moments(table, algorithm, logits_RA=logits_RA, behaviour_RA=logits_RA, size=count)
        for table, count in zip(tables, counts, strict=True)
        if count
    ]
    mean_RA: Doubles = np.mean([part.mean_RA for part in parts], axis=0)
    variance = sum(part.variance for part in parts) / len(parts) ** 2
    return Step(counts, Moments(mean_RA=mean_RA, variance=variance, steps=sum(part.steps for part in parts)))


def task_rows(*, budget: int = 8) -> list[str]:
    """The same budget over all tasks and over those that should disagree."""
    known = tasks()
    tables = list(known.values())
    logits_RA = np.zeros(tables[0].allowed_RA.shape)
    exact_RA = np.mean([exact_gradient(table, logits_RA, gamma=1.0) for table in tables], axis=0)
    heads = [f"{name} ({success(table, logits_RA):.2f})" for name, table in known.items()]
    lines = ["| method | " + " | ".join(heads) + " | cosine | length | noise |"]
    lines.append("| --- |" + " --: |" * (len(heads) + 3))
    share = {"budget": budget, "root_share": 1.0, "average": "sum"}
    for std in ("none", "sample"):
        methods = {
            "`grpo`": build_algorithm("grpo", {"std": std, "average": "sum"}),
            "`trace_budget`": build_algorithm("trace_budget", {"std": std, "rollouts": budget // 2, **share}),
        }
        for label, algorithm in methods.items():
            step = allocated(tables, algorithm, logits_RA=logits_RA, budget=budget)
            row = step.moments.compared(exact_RA)
            told = [*map(str, step.rollouts), f"{row.cosine:.4f}", f"{row.length:.3f}", f"{row.noise:.2f}"]
            lines.append(f"| {label}, `std = {std}` | " + " | ".join(told) + " |")
    return lines


def render(names: Sequence[str], *, updates: int) -> str:
    """Both tables."""
    lines = [f"Monte Carlo, {updates} updates of one group of {SIZE} a cell, as published but for the sizes:", ""]
    lines += rows(names, updates=updates, extra={})
    lines += ["", "Undivided (`std = none`) and summed over tokens (`average = sum`):", ""]
    lines += rows(names, updates=updates, extra=PLAIN)
    lines += [
        "",
        "Several tasks (chance of success): 8 rollouts over all of them, or over the two that should disagree;",
    ]
    lines += ["enumerated, summed over tokens, uniform policy:", "", *task_rows()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Draw, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=3000, help=f"of every cell; at least {BLOCKS}")
    parser.add_argument("--only", default="", help="methods, separated by commas; all by default")
    parser.add_argument("--out", type=File, help="a page with the two marks")
    asked = parser.parse_args()
    known = sorted({name for name, _ in METHODS.values()})
    text = render([name for name in asked.only.split(",") if name] or known, updates=asked.updates)
    print(text)
    if asked.out is not None:
        write(asked.out, text, marks=MARKS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
