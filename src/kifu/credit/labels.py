"""Labels of turns, made when the episode is over: what a process reward model is fitted to, and a critic in hindsight.

Axes: ``G`` members of a group, ``K`` turns.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

import numpy as np

from kifu.credit.arrays import Doubles, check_gamma
from kifu.credit.episode import Episode
from kifu.errors import ArgumentError

Direction: TypeAlias = Literal["from_start", "to_end"]


class Label(StrEnum):
    """What a critic says of a turn after the episode."""

    GOOD = "good"
    """What followed was better than what follows this state on average."""
    BAD = "bad"
    NEUTRAL = "neutral"
    """No different, or nobody ever did otherwise in this state: nothing to compare with."""


def process_targets(score: float, *, turns: int, gamma: float, direction: Direction) -> Doubles:
    """``[K]`` soft labels in [0, 1] for the turns of one trajectory (AgentPRM, Choudhury, 2025).

        from_start   (gamma^k (2 score - 1) + 1) / 2             as the authors' code has it: late turns count less
        to_end       (gamma^(K-1-k) (2 score - 1) + 1) / 2       what Q = gamma^(T-t) R says: early turns count less

    Args:
        score: outcome in [0, 1].
        turns: K.
        gamma: discount per turn.
        direction: from which end the discount counts.
    """
    check_gamma(gamma)
    if not 0.0 <= score <= 1.0:
        raise ArgumentError(f"a soft label needs a score in [0, 1], found {score}; scale the reward first")
    steps_K = np.arange(turns) if direction == "from_start" else np.arange(turns)[::-1]
    found_K: Doubles = (np.power(gamma, steps_K) * (2.0 * score - 1.0) + 1.0) / 2.0
    return found_K


def pooled_targets(group: Sequence[Episode], targets: Sequence[Doubles]) -> list[Doubles]:
    """``[G][K]`` targets averaged over turns that took the same action in the same state, as the authors do.

    Raises:
        ArgumentError: a turn without a state key or an action.
    """
    means = _means(_pairs(group), targets)
    return [np.array([means[pair] for pair in pairs], dtype=np.float64) for pairs in _pairs(group)]


def hindsight_labels(group: Sequence[Episode], *, tolerance: float = 0.0) -> list[list[Label]]:
    """``[G][K]`` what a critic who has read every finished attempt says of each turn.

        Q(s, a) - V(s),    Q: mean outcome of attempts that did a in s,    V: of all attempts that were in s

    An attempt counts once per state, however often it came by. It is a comparison of recorded outcomes and no
    counterfactual: whoever reaches s may differ in more than a.

    Args:
        group: attempts with outcomes; one without takes no part and is neutral throughout.
        tolerance: difference up to which a turn is neutral.

    Raises:
        ArgumentError: a turn without a state key or an action.
    """
    known = [episode for episode in group if episode.outcome is not None]
    worth: dict[str, list[float]] = {}
    of_action: dict[tuple[str, str], list[float]] = {}
    for episode, pairs in zip(known, _pairs(known), strict=True):
        for state in {state for state, _ in pairs}:
            worth.setdefault(state, []).append(float(episode.outcome or 0.0))
        for pair in set(pairs):
            of_action.setdefault(pair, []).append(float(episode.outcome or 0.0))
    return [
        [
            _label(pair, of_action, worth, tolerance=tolerance) if episode.outcome is not None else Label.NEUTRAL
            for pair in pairs
        ]
        for episode, pairs in zip(group, _pairs(group), strict=True)
    ]


def _label(
    pair: tuple[str, str],
    of_action: dict[tuple[str, str], list[float]],
    worth: dict[str, list[float]],
    *,
    tolerance: float,
) -> Label:
    difference = float(np.mean(of_action[pair]) - np.mean(worth[pair[0]]))
    if abs(difference) <= tolerance:
        return Label.NEUTRAL
    return Label.GOOD if difference > 0 else Label.BAD


def _pairs(group: Sequence[Episode]) -> list[list[tuple[str, str]]]:
    """``[G][K]`` state and action of every turn."""
    found = []
    for episode in group:
        episode.facts("state"), episode.facts("action")
        found.append([(str(turn.state), str(turn.action)) for turn in episode.turns])
    return found


def _means(pairs: Sequence[Sequence[tuple[str, str]]], values: Sequence[Doubles]) -> dict[tuple[str, str], float]:
    by_pair: dict[tuple[str, str], list[float]] = {}
    for of_one, values_K in zip(pairs, values, strict=True):
        for pair, value in zip(of_one, values_K.tolist(), strict=True):
            by_pair.setdefault(pair, []).append(value)
    return {pair: float(np.mean(found)) for pair, found in by_pair.items()}
