"""Mean and variance of every method's update against the exact gradient, by full enumeration in float64.

    python benchmarks/estimators.py [--size 4] [--only grpo,rloo] [--out docs/results/estimators.md]

Two worlds of at most 22 trajectories, one token an action. An update is one group of `--size` rollouts; every multiset
of trajectories is credited by the method itself, weighed by its reduction, and differentiated through its objective.
What the method needs besides rewards is exact: values are V of the history, states are those of the world, the gold
answer is as likely as V, and an action in hindsight as Bayes says. Stored records are trajectories of the policy that
sampled; a replayed success is one of its successes, in the place of any member of a failed group. Methods are
compared by the direction and the length of their mean, and by the noise that is left at equal environment steps. The
tables stand between two marks of the page, so that the text around them stays.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import factorial, log, prod, sqrt
from pathlib import Path as File
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kifu.algorithms import ALGORITHMS, Algorithm, build_algorithm
from kifu.credit import BranchPoint, Doubles, Episode, TurnFacts
from kifu.credit.branching import Allocated, Independent
from kifu.credit.reading import RewardRules
from kifu.credit.sources import FreshRollouts, StoredPairs, StoredTrajectories, SuccessReplay, wants_replay
from kifu.errors import ArgumentError
from kifu.lab import (
    MdpWorld,
    Outcome,
    Path,
    PathTable,
    corridor,
    enumerate_paths,
    exact_gradient,
    exact_values,
    path_probabilities,
    policy_rows,
)
from kifu.objectives import ImportanceRatio, PolicyObjective, SequenceRatio, Terms
from kifu.training.update.crediting import Member, credit_groups

BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"
STALENESS = (0, 1, 2, 3, 4)
RATE = 1.5
"""Step of exact gradient ascent that lies between two versions."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {"agentic_dpo": {"negatives": "recorded"}}
"""Where the published setting takes its data from elsewhere."""
FLOOR = 0.01
"""Chance of the gold answer where the truth is 0; 1 is one minus it."""


@dataclass(frozen=True)
class Climb:
    """Stop where you are and be paid for the height, or climb on and fall with chance 0.2: lengths and rewards vary."""

    num_actions: int = 2
    pays: tuple[float, ...] = (0.0, 0.3, 0.6, 1.0)

    def starts(self) -> Sequence[tuple[float, int]]:
        """On the ground."""
        return [(1.0, 0)]

    def observe(self, state: int) -> int:
        """The height."""
        return state

    def allowed(self, state: int) -> Sequence[int]:
        """At the top there is nothing to climb."""
        return (0,) if state == len(self.pays) - 1 else (0, 1)

    def outcomes(self, state: int, action: int) -> Sequence[Outcome[int]]:
        """Stopping pays; climbing may end in a fall."""
        if action == 0:
            return [Outcome(probability=1.0, state=state, reward=self.pays[state], terminated=True)]
        return [
            Outcome(probability=0.8, state=state + 1, reward=0.0, terminated=False),
            Outcome(probability=0.2, state=state, reward=0.0, terminated=True),
        ]


def worlds() -> dict[str, PathTable]:
    """Corridor of five cells with a task limit of six steps (22 trajectories), and the climb (7)."""
    return {
        "corridor": enumerate_paths(MdpWorld(mdp=corridor()), max_steps=6),
        "climb": enumerate_paths(Climb(), max_steps=4),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """An update's gradient over everything that can be sampled, upwards on J."""

    mean_RA: Doubles
    variance: float
    """Trace of the covariance."""
    steps: float
    """Mean number of environment steps of an update."""

    def compared(self, exact_RA: Doubles) -> "Compared":
        """With the exact gradient."""
        length, wanted = float(np.linalg.norm(self.mean_RA)), float(np.linalg.norm(exact_RA))
        if length < 1e-12:
            return Compared(cosine=0.0, length=0.0, noise=float("inf"))
        return Compared(
            cosine=float((self.mean_RA * exact_RA).sum()) / (length * wanted),
            length=length / wanted,
            noise=sqrt(self.variance * self.steps / 100.0) / length,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a row of the table says."""

    cosine: float
    length: float
    """Of the mean over that of the gradient."""
    noise: float
    """Standard deviation of the mean update over 100 environment steps, in lengths of its mean."""


def update_moments(
    table: PathTable, algorithm: Algorithm, *, logits_RA: Doubles, behaviour_RA: Doubles, size: int
) -> Moments:
    """Mean and variance of one update of one group.

    Args:
        table: every trajectory of the world.
        algorithm: credits, reduces and gives the objective; bonuses and penalties beside the surrogate are left out.
        logits_RA: of the policy that is updated.
        behaviour_RA: of the one that sampled.
        size: of the group. Members are exchangeable, so multisets of trajectories are enough.
    """
    episodes = [episodes_of(table, behaviour_RA, member=member) for member in range(size)]
    updates = _updates(table, algorithm.plan.data, logits=(logits_RA, behaviour_RA), size=size)
    groups = [update.places for update in updates]
    gradients_URA = gradients(table, algorithm, groups, episodes=episodes, logits=(logits_RA, behaviour_RA))
    weights_U = np.array([update.chance for update in updates])
    mean_RA: Doubles = np.einsum("u,ura->ra", weights_U, gradients_URA)
    spread = float(np.einsum("u,ura,ura->", weights_U, gradients_URA, gradients_URA) - (mean_RA**2).sum())
    return Moments(
        mean_RA=mean_RA,
        variance=max(spread, 0.0),
        steps=float(weights_U @ np.array([update.steps for update in updates])),
    )


class Place(NamedTuple):
    """Who stands in a place of a group."""

    path: int
    behaved: bool = True
    """Whether its ratio is over the policy that sampled; else over the one that is updated."""
    parent: int | None = None
    """The place it branched from, earlier in the group."""
    own: int = 0
    """The first turn it took itself."""


class Update(NamedTuple):
    """One way an update can turn out."""

    places: tuple[Place, ...]
    chance: float
    steps: int
    """Environment steps it took; what is replayed takes none."""


def _updates(table: PathTable, data: object, *, logits: tuple[Doubles, Doubles], size: int) -> list[Update]:
    """Every update, sampled by the second policy; with replay by the first, and by the second what is replayed."""
    present_P, behaviour_P = (path_probabilities(table, item) for item in logits)
    rewards = [sum(path.rewards_T) for path in table.paths]
    sampled_P = present_P if isinstance(data, SuccessReplay) else behaviour_P
    found = []
    for chosen in combinations_with_replacement(range(len(table.paths)), size):
        ways = factorial(size) // prod(factorial(count) for count in Counter(chosen).values())
        chance = ways * float(np.prod(sampled_P[list(chosen)]))
        steps = sum(len(table.paths[at].rows_T) for at in chosen)
        fresh = tuple(Place(path=at, behaved=not isinstance(data, SuccessReplay)) for at in chosen)
        if not (isinstance(data, SuccessReplay) and wants_replay([rewards[at] for at in chosen], data)):
            found.append(Update(places=fresh, chance=chance, steps=steps))
            continue
        successes = [at for at, reward in enumerate(rewards) if reward > data.above]
        among = float(behaviour_P[successes].sum())
        for place in range(size):
            for at in successes:
                replayed = Place(path=at, behaved=data.ratio == "recorded")
                share = chance * float(behaviour_P[at]) / (among * size)
                found.append(Update(places=(*fresh[:place], replayed, *fresh[place + 1 :]), chance=share, steps=steps))
    return found


def episodes_of(table: PathTable, behaviour_RA: Doubles, *, member: int) -> list[Episode]:
    """``[P]`` what credit is told of every trajectory when it stands in place ``member`` of its group."""
    rows_RA, values = policy_rows(table, behaviour_RA), exact_values(table, behaviour_RA, gamma=1.0)
    ends = _ends(table, path_probabilities(table, behaviour_RA))
    return [_episode(table, path, rows_RA, values, name=f"m{member}", ends=ends) for path in table.paths]


def _ends(table: PathTable, probability_P: Doubles) -> Counter[tuple[object, ...]]:
    """Probability of passing a history, and of taking an action there, and either with the return at the end."""
    found: Counter[tuple[object, ...]] = Counter()
    for path, chance in zip(table.paths, probability_P.tolist(), strict=True):
        for node, action in zip(path.nodes_T, path.actions_T, strict=True):
            for key in ((node,), (node, action), (node, "ends", sum(path.rewards_T))):
                found[key] += chance
            found[node, action, "ends", sum(path.rewards_T)] += chance
    return found


def hindsight(path: Path, turn: int, ends: Mapping[tuple[object, ...], float], chance: float) -> float:
    """P(action | history, how it ended) = P(action | history) P(end | history, action) / P(end | history)."""
    node, action, outcome = path.nodes_T[turn], path.actions_T[turn], sum(path.rewards_T)
    after = ends[node, action, "ends", outcome] / ends[node, action]
    return chance * after / (ends[node, "ends", outcome] / ends[(node,)])


def _gold(chance: float) -> float:
    return log(min(max(chance, FLOOR), 1.0 - FLOOR))


def _episode(
    table: PathTable,
    path: Path,
    rows_RA: npt.NDArray[Any],
    values: Doubles,
    *,
    name: str,
    ends: Mapping[tuple[object, ...], float],
) -> Episode:
    outcome, states = sum(path.rewards_T), [str(table.information[row]) for row in path.rows_T]
    values_K = values[list(path.nodes_T)]
    facts = []
    for at, (row, action) in enumerate(zip(path.rows_T, path.actions_T, strict=True)):
        chances_A = rows_RA[row][rows_RA[row] > 0]
        entropy = float(-(chances_A * np.log(chances_A)).sum())
        end = "success" if outcome == 1.0 else "failure"
        facts.append(
            TurnFacts(
                num_tokens=1,
                rewards={"paid": path.rewards_T[at]},
                state=states[at],
                next_state=states[at + 1] if at + 1 < len(states) else end,
                tool=str(action),
                action=str(action),
                entropy=entropy,
                logprobs_N=np.log(rows_RA[[row], [action]]),
                entropies_N=np.array([entropy]),
                values_N=values_K[[at]],
                reference_logprobs_N=np.log(rows_RA[[row], [action]]),
                gold_logprob=_gold(float(values_K[at])),
                hindsight_logprob=min(log(hindsight(path, at, ends, float(rows_RA[row, action]))), 0.0),
            )
        )
    return Episode(
        rewards_K=np.array(path.rewards_T),
        terminated=True,
        values_K=values_K,
        id=name,
        outcome=outcome,
        success=outcome == 1.0,
        turns=tuple(facts),
        tree=name,
        final_gold_logprob=_gold(outcome),
        model_score=outcome,
    )


def seated(episodes: Sequence[Episode], places: Sequence[Place]) -> list[Episode]:
    """The episodes of a group, with who branched from whom."""
    found: list[Episode] = []
    for episode, place in zip(episodes, places, strict=True):
        if place.parent is not None:
            parent = found[place.parent]
            episode = replace(episode, branch=BranchPoint(parent=parent.id, turn=place.own), tree=parent.tree)
        found.append(episode)
    return found


class _Token(NamedTuple):
    group: int
    member: int
    row: int
    action: int
    behaved: bool
    advantage: float
    weight: float
    pair: int


def gradients(
    table: PathTable,
    algorithm: Algorithm,
    groups: Sequence[tuple[Place, ...]],
    *,
    episodes: Sequence[Sequence[Episode]],
    logits: tuple[Doubles, Doubles],
) -> Doubles:
    """``[U, R, A]`` minus the gradient of every group's loss; all groups share one call of the objective."""
    tokens: list[_Token] = []
    for number, chosen in enumerate(groups):
        members = [
            Member(episode=episode, turns_N=np.arange(episode.num_turns))
            for episode in seated([episodes[at][place.path] for at, place in enumerate(chosen)], chosen)
        ]
        told = credit_groups([members], algorithm=algorithm, rules=RewardRules(), seed=0).groups[0]
        for at, (place, one) in enumerate(zip(chosen, told.members, strict=False)):
            walk, pair = table.paths[place.path], one.credit.pair
            tokens += [
                _Token(
                    group=number,
                    member=number * len(chosen) + at,
                    row=row,
                    action=action,
                    behaved=place.behaved,
                    advantage=float(advantage),
                    weight=float(weight),
                    pair=len(groups) * len(chosen) if pair is None else number * len(chosen) + pair,
                )
                for row, action, advantage, weight in zip(
                    walk.rows_T, walk.actions_T, one.advantages_N, one.weights_N, strict=True
                )
            ]
    found_URA = np.zeros((len(groups), *logits[0].shape))
    if not tokens:
        return found_URA
    column = {name: np.array([getattr(token, name) for token in tokens]) for name in _Token._fields}
    numbers, rows, actions = column["group"], column["row"], column["action"]
    policies = [policy_rows(table, item) for item in logits]
    present_N, behaviour_N = (np.log(policy[rows, actions]) for policy in policies)
    logp_N = torch.tensor(present_N, requires_grad=True)
    loss = _surrogate_alone(algorithm)(
        Terms(
            logp_N=logp_N,
            behaviour_logp_N=torch.tensor(np.where(column["behaved"], behaviour_N, present_N)),
            advantage_N=torch.tensor(column["advantage"]),
            weight_N=torch.tensor(column["weight"]),
            turn_N=torch.arange(len(tokens)),
            sequence_N=torch.tensor(column["member"]),
            reference_logp_N=torch.tensor(present_N) if algorithm.plan.needs_reference else None,
            pair_N=torch.tensor(column["pair"]) if isinstance(algorithm.plan.data, StoredPairs) else None,
        )
    )
    (slope_N,) = torch.autograd.grad(loss.total, logp_N, allow_unused=True, materialize_grads=True)
    score_NA = -policies[0][rows]
    score_NA[np.arange(rows.size), actions] += 1.0
    np.add.at(found_URA, (numbers, rows), -slope_N.numpy()[:, None] * score_NA)
    return found_URA


def _surrogate_alone(algorithm: Algorithm) -> Any:  # noqa: ANN401 (an objective)
    objective = algorithm.objective()
    if isinstance(objective, PolicyObjective):
        return replace(objective, entropy=None, value=None, kl=None)
    return objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """REINFORCE's credit under the true ratio of the whole trajectory: what exact correction costs."""

    inner: Algorithm

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.inner, name)

    def objective(self) -> PolicyObjective:
        """Unbounded ratio, product over the trajectory."""
        return PolicyObjective(surrogate=ImportanceRatio(level=SequenceRatio(aggregation="product", gradient="token")))


def left_out(algorithm: Algorithm) -> str | None:
    """Why a method is not in the table; None when it is."""
    plan = algorithm.plan
    if plan.demonstrations:
        return "imitates demonstrations"
    if not isinstance(plan.data, FreshRollouts | StoredPairs | StoredTrajectories | SuccessReplay):
        return f"takes its data from elsewhere ({type(plan.data).__name__})"
    if not isinstance(plan.rollout, Independent | Allocated):  # one task has the whole budget, if no prefix is taken
        return f"its rollouts branch ({type(plan.rollout).__name__}), see below"
    return None


def older(table: PathTable, logits_RA: Doubles, *, versions: int) -> Doubles:
    """The policy from which so many steps of exact ascent lead here: found by going down again."""
    found = logits_RA
    for _ in range(versions):
        found = found - RATE * exact_gradient(table, found, gamma=1.0)
    return found


def start(table: PathTable) -> Doubles:
    """Logits of a policy that is neither uniform nor good."""
    found: Doubles = np.random.default_rng(3).normal(scale=0.5, size=table.allowed_RA.shape)
    return found


def fresh_table(size: int, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Rows of the first table, and who is left out."""
    lines = [
        "| method | corridor: cosine | length | noise | climb: cosine | length | noise |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    missing: dict[str, str] = {}
    tables = worlds()
    for name in names:
        options = OPTIONS.get(name, {})
        algorithm = build_algorithm(name, options)
        why = left_out(algorithm)
        cells = []
        try:
            for table in () if why else tables.values():
                logits_RA = start(table)
                found = update_moments(table, algorithm, logits_RA=logits_RA, behaviour_RA=logits_RA, size=size)
                row = found.compared(exact_gradient(table, logits_RA, gamma=1.0))
                cells += [f"{row.cosine:.4f}", f"{row.length:.3f}", f"{row.noise:.2f}"]
        except ArgumentError as lacking:
            why = f"asks for what these worlds do not have: {lacking}"
        if why:
            missing[name] = why
        else:
            label = ", ".join([f"`{name}`", *(f"`{option} = {value}`" for option, value in options.items())])
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines, missing


OFF_POLICY = {
    *("reinforce", "ppo", "grpo", "dapo", "cispo", "gspo", "sao", "turn_ppo", "rloo"),
    *("agentic_replay_po", "offline_awr", "dpo"),
}


def stale_table(size: int, names: Sequence[str]) -> list[str]:
    """Rows of the second table: direction and length at each age, on the climb."""
    table = worlds()["climb"]
    logits_RA = start(table)
    exact_RA = exact_gradient(table, logits_RA, gamma=1.0)
    lines = [
        "| method | " + " | ".join(f"age {age}" for age in STALENESS) + " |",
        "| --- | " + " | ".join("--:" for _ in STALENESS) + " |",
    ]
    methods: dict[str, Any] = {f"`{name}`": build_algorithm(name) for name in names if name in OFF_POLICY}
    if "agentic_replay_po" in names:
        corrected = build_algorithm("agentic_replay_po", {"correction": "ratio"})
        methods["`agentic_replay_po`, corrected"] = corrected
    methods["`reinforce`, true ratio"] = Corrected(inner=build_algorithm("reinforce"))
    for label, algorithm in methods.items():
        cells = []
        for age in STALENESS:
            behaviour_RA = older(table, logits_RA, versions=age)
            found = update_moments(table, algorithm, logits_RA=logits_RA, behaviour_RA=behaviour_RA, size=size)
            row = found.compared(exact_RA)
            cells.append(f"{row.cosine:.3f} · {row.length:.2f} · {row.noise:.1f}")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def render(size: int, names: Sequence[str]) -> str:
    """Both tables with what they leave out."""
    rows, missing = fresh_table(size, names)
    lines = [f"Updates of one group of {size}, on the policy that sampled:", "", *rows, ""]
    lines += ["Left out:", "", *(f"- `{name}`: {why}." for name, why in missing.items())] if missing else []
    about = (
        f"On the climb, sampled by older policies ({RATE:g} times the gradient a version; direction · length · noise):"
    )
    lines += ["", about]
    lines += ["", *stale_table(size, names)]
    return "\n".join(lines) + "\n"


def write(page: File, text: str, *, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Put the tables between the marks of a page."""
    before, _, rest = page.read_text().partition(marks[0])
    _, _, after = rest.partition(marks[1])
    page.write_text(f"{before}{marks[0]}\n{text}{marks[1]}{after}")


def main() -> int:
    """Enumerate, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4, help="rollouts of a group")
    parser.add_argument("--only", default="", help="methods, separated by commas; all by default")
    parser.add_argument("--out", type=File, help="a page with the two marks")
    asked = parser.parse_args()
    names = [name for name in asked.only.split(",") if name] or sorted(ALGORITHMS)
    text = render(asked.size, names)
    print(text)
    if asked.out is not None:
        write(asked.out, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
