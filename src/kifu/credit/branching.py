"""Where the rollouts of a group branch: decided from what is on record and from derived random numbers alone.

Axes: ``K`` turns of a path, ``N`` tokens of a turn, ``S`` tokens of a distribution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Literal, NamedTuple, TypeAlias, assert_never

from kifu.credit.tree import EntropyKind
from kifu.errors import ArgumentError

Uniform: TypeAlias = Callable[[int, int], float]
"""(round, number of the draw in it) to a number in [0, 1); the same for every process that asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Independent:
    """Every rollout starts from the task's initial state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStart:
    """So many whole rollouts come first."""

    count: int = 8

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ArgumentError(f"a group begins with at least 1 whole rollout, found {self.count}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreMonitored:
    """The entropies of the group's first rollout say how many whole rollouts there are (AEPO)."""

    slope: float = 0.5


Start: TypeAlias = FixedStart | PreMonitored


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainDraw:
    """Branch iff ``clip(u - w dH, 0, 1) <= p``, that is with probability ``clip(p + w dH, 0, 1)`` (ARPO's code)."""

    probability: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DampedDraw:
    """Branch iff ``clip((u + w dH) max(0, 1 - penalty c), 0, 1) >= threshold``, c rounds in a row having grown."""

    threshold: float = 0.5
    penalty: float = 0.05


Draw: TypeAlias = PlainDraw | DampedDraw
Side: TypeAlias = Literal["after_result", "before_call"]
"""Whose entropy decides at a tool's result: that of the tokens written after it, or of the turn that made the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBranching:
    """Paths branch after tool results, the likelier the more uncertain the policy is (Dong et al., 2025, ARPO)."""

    start: Start = field(default_factory=FixedStart)
    beam: int = 2
    """A path gives at most ``beam - 1`` branches at one result."""
    weight: float = 0.2
    """Of the rise in entropy."""
    draw: Draw = field(default_factory=PlainDraw)
    head: int = 20
    """Tokens of a turn whose entropies are added."""
    side: Side = "after_result"

    def __post_init__(self) -> None:
        if self.beam < 2 or self.head < 1:
            raise ArgumentError(f"beam must be at least 2 and head at least 1, found {self.beam} and {self.head}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopScore:
    """The turns of highest ``H - penalty (branches - 1)`` of the whole group are written once more (AT2PO)."""

    penalty: float = 0.05
    entropy: EntropyKind = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomNodes:
    """In every tree, nodes drawn with replacement, the root included, are gone on from (Tree-GRPO)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeExpansion:
    """Chains grow into trees in rounds; only turns that something followed are chosen."""

    chains: int = 10
    """Whole rollouts at first."""
    rounds: int = 2
    picks: int = 6
    """Branches of a round; of each tree with `RandomNodes`."""
    choice: TopScore | RandomNodes = field(default_factory=TopScore)

    def __post_init__(self) -> None:
        if min(self.chains, self.rounds, self.picks) < 1:
            raise ArgumentError(
                f"chains, rounds and picks must be at least 1, found {self.chains}, {self.rounds}, {self.picks}"
            )

    @property
    def total(self) -> int:
        """Rollouts of a full group."""
        trees = self.chains if isinstance(self.choice, RandomNodes) else 1
        return self.chains + self.rounds * self.picks * trees


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """A budget of rollouts for the whole step: tasks first, then turns that were visited (TRACE, arXiv 2606.11119)."""

    budget: int
    """Rollouts of one step."""
    roots: int
    """Of them, those that begin at a task's initial state."""
    attempts: int
    """Rollouts at one chosen task."""
    prior: float
    """Rollouts that an estimate of more general kind counts for."""

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= self.roots <= self.budget:
            raise ArgumentError(
                "a budget holds its roots and these the attempts at one task: expected "
                "1 <= attempts <= roots <= budget, "
                f"found {self.attempts}, {self.roots}, {self.budget}"
            )
        if not self.prior > 0:
            raise ArgumentError(f"prior must be > 0, found {self.prior}")


RolloutPlan: TypeAlias = Independent | EntropyBranching | TreeExpansion | Allocated


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One finished rollout, as far as decisions look at it."""

    id: str
    heads_K: tuple[float, ...]
    """Nats, sum over the first sampled tokens of each turn; inherited turns included."""
    entropies_K: tuple[float, ...]
    """Nats, mean over the sampled tokens of each turn."""
    parent: str | None = None
    own: int = 0
    """The first turn it wrote itself."""

    @property
    def num_turns(self) -> int:
        """K."""
        return len(self.heads_K)


class Fork(NamedTuple):
    """A rollout to make: turns before ``turn`` are those of the path called ``parent``."""

    parent: str
    turn: int


def segment_entropy(probabilities_NS: Sequence[Sequence[float]], *, vocabulary: int) -> float:
    """``H = (1 / ln V) sum_n sum_s - p_ns ln p_ns``: added over tokens, in units of the largest one (ARPO's code)."""
    total = sum(-p * log(p) for row in probabilities_NS for p in row if p > 0.0)
    return in_vocabularies(total, vocabulary=vocabulary)


def in_vocabularies(nats: float, *, vocabulary: int) -> float:
    """An entropy over ``ln V``, the largest that one token can have."""
    if vocabulary < 2:
        raise ArgumentError(f"a vocabulary holds at least 2 tokens, found {vocabulary}")
    return nats / log(vocabulary)


def branch_probability(rise: float, *, probability: float = 0.5, weight: float = 0.2) -> float:
    """``P(branch) = clip(probability + weight dH, 0, 1)``: what `PlainDraw` comes to."""
    return min(max(probability + weight * rise, 0.0), 1.0)


def draw_value(u: float, rise: float, *, draw: Draw, weight: float, grown: int = 0) -> float:
    """What is held against the threshold.

    Args:
        u: in [0, 1).
        rise: dH.
        draw: the rule.
        weight: w.
        grown: rounds in a row in which the group grew.
    """
    match draw:
        case PlainDraw():
            value = u - weight * rise
        case DampedDraw(penalty=penalty):
            value = (u + weight * rise) * max(0.0, 1.0 - penalty * grown)
        case _ as unreachable:
            assert_never(unreachable)
    return min(max(value, 0.0), 1.0)


def does_branch(u: float, rise: float, *, draw: Draw, weight: float, grown: int = 0) -> bool:
    """Whether a draw makes a branch; the arguments are those of `draw_value`."""
    value = draw_value(u, rise, draw=draw, weight=weight, grown=grown)
    return value <= draw.probability if isinstance(draw, PlainDraw) else value >= draw.threshold


def initial_rollouts(budget: int, *, root: float, steps: float, slope: float = 0.5) -> int:
    """``clip(int(n sigma(slope (H_root - H_steps))) + 1, 1, n)``: whole rollouts of a group of n (AEPO's code)."""
    share = 1.0 / (1.0 + exp(-slope * (root - steps)))
    return min(max(int(budget * share) + 1, 1), budget)


def first_rollouts(plan: EntropyBranching, first: Path | None, *, budget: int, vocabulary: int) -> int:
    """How many whole rollouts a group of ``budget`` begins with.

    Args:
        plan: the rollout plan.
        first: the group's first rollout; None when it failed.
        budget: rollouts of the group.
        vocabulary: tokens of the policy.
    """
    match plan.start:
        case FixedStart(count=count):
            return min(count, budget)
        case PreMonitored(slope=slope):
            heads = () if first is None else first.heads_K
            if len(heads) < 2:
                return initial_rollouts(budget, root=0.0, steps=0.0, slope=slope)
            root, steps = heads[0], sum(heads[1:]) / len(heads[1:])
            return initial_rollouts(
                budget,
                root=in_vocabularies(root, vocabulary=vocabulary),
                steps=in_vocabularies(steps, vocabulary=vocabulary),
                slope=slope,
            )
        case _ as unreachable:
            assert_never(unreachable)


def entropy_rise(plan: EntropyBranching, path: Path, turn: int, *, vocabulary: int) -> float:
    """Rise dH at the tool's result before ``turn``, against the path's first turn."""
    at = turn if plan.side == "after_result" else turn - 1
    return in_vocabularies(path.heads_K[at] - path.heads_K[0], vocabulary=vocabulary)


def branch_after_results(
    plan: EntropyBranching,
    paths: Sequence[Path],
    *,
    turn: int,
    room: int,
    vocabulary: int,
    uniform: Uniform,
    grown: int = 0,
) -> list[Fork]:
    """The branches that leave before turn ``turn``, in the order of the paths, until there is no room.

    Args:
        plan: the rollout plan.
        paths: every path of the group that ended without a failure.
        turn: >= 1; the turn that is written again.
        room: rollouts the group still lacks.
        vocabulary: tokens of the policy.
        uniform: the draws.
        grown: rounds in a row in which the group grew.
    """
    found: list[Fork] = []
    for at, path in enumerate(paths):
        if path.own >= turn or path.num_turns <= turn:
            continue
        rise = entropy_rise(plan, path, turn, vocabulary=vocabulary)
        for draw in range(plan.beam - 1):
            u = uniform(turn, at * (plan.beam - 1) + draw)
            if len(found) < room and does_branch(u, rise, draw=plan.draw, weight=plan.weight, grown=grown):
                found.append(Fork(path.id, turn))
    return found


def node_score(entropy: float, *, branches: int, penalty: float = 0.05) -> float:
    """``H - penalty (branches - 1)``, with the number of turns that stand side by side at the node (AT2PO's code)."""
    return entropy - penalty * (branches - 1)


def expand_tree(plan: TreeExpansion, paths: Sequence[Path], *, number: int, room: int, uniform: Uniform) -> list[Fork]:
    """The branches of round ``number``.

    Args:
        plan: the rollout plan.
        paths: every path of the group that ended without a failure.
        number: of the round, from 0.
        room: rollouts the group still lacks.
        uniform: the draws.
    """
    match plan.choice:
        case TopScore(penalty=penalty):
            found = _best_nodes(paths, picks=plan.picks, penalty=penalty)
        case RandomNodes():
            found = _random_nodes(paths, picks=plan.picks, number=number, uniform=uniform)
        case _ as unreachable:
            assert_never(unreachable)
    return found[:room]


_Place: TypeAlias = tuple[str, int]


def _best_nodes(paths: Sequence[Path], *, picks: int, penalty: float) -> list[Fork]:
    known = {path.id: path for path in paths}
    branches: dict[_Place, int] = {}
    for path in paths:
        if path.parent is not None:
            place = _place(path, path.own, known)
            branches[place] = branches.get(place, 0) + 1
    scored = [
        (
            node_score(
                path.entropies_K[turn], branches=1 + branches.get(_place(path, turn, known), 0), penalty=penalty
            ),
            Fork(path.id, turn),
        )
        for path in paths
        for turn in range(path.own, path.num_turns - 1)
    ]
    scored.sort(key=lambda item: -item[0])  # stable: the earlier node of equal ones comes first
    return [fork for _, fork in scored[:picks]]


def _place(path: Path, turn: int, known: dict[str, Path]) -> _Place:
    """Names the state before a turn: turns that were written from one state stand at one place."""
    while path.own == turn and path.parent in known:
        path = known[path.parent]
    return ("", 0) if turn == 0 else (path.id, turn)


def _random_nodes(paths: Sequence[Path], *, picks: int, number: int, uniform: Uniform) -> list[Fork]:
    found: list[Fork] = []
    trees = _trees(paths)
    for at, (root, members) in enumerate(trees.items()):
        nodes = [Fork(root, 0)]
        nodes += [Fork(path.id, turn + 1) for path in members for turn in range(path.own, path.num_turns - 1)]
        found += [nodes[int(uniform(number, at * picks + pick) * len(nodes))] for pick in range(picks)]
    return found


def _trees(paths: Sequence[Path]) -> dict[str, list[Path]]:
    known, found = {path.id: path for path in paths}, dict[str, list[Path]]()
    for path in paths:
        root = path
        while root.parent is not None and root.parent in known:
            root = known[root.parent]
        found.setdefault(root.id, []).append(path)
    return found
