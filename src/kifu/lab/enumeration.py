"""Every path of a small episodic world under a tabular policy, written down once for all policies.

A path's probability is a world factor, fixed here, times the policy's factor, which depends on the logits. So sums over
paths are exact functions of the logits.

Axes: ``R`` information states (rows of the policy table), ``A`` actions, ``P`` paths, ``T`` decisions of one path.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from kifu.credit import Doubles
from kifu.errors import ArgumentError
from kifu.lab.mdp import FiniteMdp

S = TypeVar("S")

History: TypeAlias = tuple[Hashable, ...]
"""Observation, action, observation, ...: what the agent has lived through, ending with an observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[S]):
    """One way a step can turn out."""

    probability: float
    state: S
    reward: float
    terminated: bool


class World(Protocol[S]):
    """A small episodic environment that can say what may happen. Hidden states may be of any type."""

    @property
    def num_actions(self) -> int:
        """Size of A."""
        ...

    def starts(self) -> Sequence[tuple[float, S]]:
        """Initial states with their probabilities."""
        ...

    def observe(self, state: S) -> Hashable:
        """What the agent is shown."""
        ...

    def allowed(self, state: S) -> Sequence[int]:
        """Actions the mask leaves; it must be the same for states the agent cannot tell apart."""
        ...

    def outcomes(self, state: S, action: int) -> Sequence[Outcome[S]]:
        """Everything that may follow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way an episode can go."""

    world_factor: float
    rows_T: tuple[int, ...]
    """Information state of each decision."""
    actions_T: tuple[int, ...]
    rewards_T: tuple[float, ...]
    nodes_T: tuple[int, ...]
    """Number of the history at each decision; equal for paths that look alike so far."""
    terminated: bool
    """False when the step limit cut it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathTable:
    """All paths, and the shape of the policies that walk them."""

    paths: tuple[Path, ...]
    information: tuple[Hashable, ...]
    """``[R]`` what each row of the policy stands for."""
    allowed_RA: npt.NDArray[np.bool_]
    num_nodes: int


def last_observation(history: History) -> Hashable:
    """The information state of a memoryless policy."""
    return history[-1]


def whole_history(history: History) -> Hashable:
    """The information state of a policy that forgets nothing."""
    return history


def enumerate_paths(
    world: World[S],
    *,
    max_steps: int,
    information: Callable[[History], Hashable] = last_observation,
    max_paths: int = 200_000,
) -> PathTable:
    """Write down every path of positive world probability, ended by the task or cut after ``max_steps`` decisions.

    Args:
        world: the environment.
        max_steps: limit of the protocol; a cut path keeps the rewards it has.
        information: from the history to what the policy's table is indexed by.
        max_paths: refuses to go on beyond this number.

    Raises:
        ArgumentError: too many paths, or one information state with two different masks.
    """
    book = _Book(num_actions=world.num_actions)
    paths: list[Path] = []
    for path in _walk(world, book, max_steps=max_steps, information=information):
        paths.append(path)
        if len(paths) > max_paths:
            raise ArgumentError(f"more than {max_paths} paths; lower max_steps or take a smaller world")
    return PathTable(
        paths=tuple(paths),
        information=tuple(book.rows),
        allowed_RA=np.array([book.masks[key] for key in book.rows], dtype=np.bool_),
        num_nodes=len(book.nodes),
    )


class _Book:
    """Numbers information states and histories in order of appearance and keeps their masks."""

    def __init__(self, *, num_actions: int) -> None:
        self.num_actions = num_actions
        self.rows: dict[Hashable, int] = {}
        self.masks: dict[Hashable, tuple[bool, ...]] = {}
        self.nodes: dict[History, int] = {}

    def row(self, key: Hashable, allowed: Sequence[int]) -> int:
        mask = tuple(action in set(allowed) for action in range(self.num_actions))
        if not any(mask):
            raise ArgumentError(f"information state {key} allows no action")
        if self.masks.setdefault(key, mask) != mask:
            raise ArgumentError(f"information state {key} has two masks: the mask tells what the observation hides")
        return self.rows.setdefault(key, len(self.rows))

    def node(self, history: History) -> int:
        return self.nodes.setdefault(history, len(self.nodes))


def _walk(
    world: World[S], book: _Book, *, max_steps: int, information: Callable[[History], Hashable]
) -> Iterator[Path]:
    empty = Path(world_factor=1.0, rows_T=(), actions_T=(), rewards_T=(), nodes_T=(), terminated=False)
    stack: list[tuple[S, History, Path]] = [
        (state, (world.observe(state),), _extended(empty, factor=probability))
        for probability, state in world.starts()
        if probability > 0
    ]
    while stack:
        state, history, path = stack.pop()
        if path.terminated or len(path.actions_T) == max_steps:
            yield path
            continue
        allowed = world.allowed(state)
        row, node = book.row(information(history), allowed), book.node(history)
        for action in allowed:
            for outcome in world.outcomes(state, action):
                if outcome.probability > 0:
                    longer = Path(
                        world_factor=path.world_factor * outcome.probability,
                        rows_T=(*path.rows_T, row),
                        actions_T=(*path.actions_T, action),
                        rewards_T=(*path.rewards_T, outcome.reward),
                        nodes_T=(*path.nodes_T, node),
                        terminated=outcome.terminated,
                    )
                    stack.append((outcome.state, (*history, action, world.observe(outcome.state)), longer))


def _extended(path: Path, *, factor: float) -> Path:
    return Path(
        world_factor=path.world_factor * factor,
        rows_T=path.rows_T,
        actions_T=path.actions_T,
        rewards_T=path.rewards_T,
        nodes_T=path.nodes_T,
        terminated=path.terminated,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MdpWorld:
    """A `FiniteMdp` seen through an observation map, as a `World`."""

    mdp: FiniteMdp
    observation_S: tuple[Hashable, ...] | None = None
    """What each state looks like; None shows the state itself."""

    @property
    def num_actions(self) -> int:
        """Size of A."""
        return self.mdp.num_actions

    def starts(self) -> Sequence[tuple[float, int]]:
        """Initial states with their probabilities."""
        return [(float(self.mdp.start_S[s]), int(s)) for s in np.flatnonzero(self.mdp.start_S)]

    def observe(self, state: int) -> Hashable:
        """The state, or what it looks like."""
        return state if self.observation_S is None else self.observation_S[state]

    def allowed(self, state: int) -> Sequence[int]:
        """Every action, everywhere."""
        del state
        return range(self.num_actions)

    def outcomes(self, state: int, action: int) -> Sequence[Outcome[int]]:
        """States that may follow, with their rewards."""
        row_S: Doubles = self.mdp.transition_SAS[state, action]
        return [
            Outcome(
                probability=float(row_S[s]),
                state=int(s),
                reward=float(self.mdp.reward_SAS[state, action, s]),
                terminated=bool(self.mdp.terminal_S[s]),
            )
            for s in np.flatnonzero(row_S)
        ]
