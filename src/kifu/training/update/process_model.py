"""The process reward model of a run: fitted once to labelled turns, frozen afterwards.

It is a function of the records, the settings and the run's seed: a resumed run fits the same one again.
Axes: ``K`` turns, ``B`` labelled turns.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kifu.credit import Doubles, Episode, pooled_targets, process_targets
from kifu.credit.reading import RewardRules, read_episode
from kifu.engines.recurrent.threads import one_thread
from kifu.errors import ArgumentError, ExperimentError
from kifu.objectives import Fitting, SequenceScorer, fit_labels
from kifu.records import Group, Ints, Trajectory
from kifu.training.experiment.layers import LabellingStage

_HELD_OUT = 5
"""One attempt in so many is kept for the error."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedProcess:
    """A scorer of turns, and how far off it is on attempts it did not see."""

    scorer: SequenceScorer
    labels: int
    """It was fitted to."""
    baseline: float
    """Mean of those labels: what an attempt is worth before its first turn."""
    held_out: int
    """Labelled turns of attempts that were kept."""
    error: float | None
    """Mean squared distance of score and label on them; None without any."""
    baseline_error: float | None
    """The same of always saying ``baseline``."""

    def score(self, records: Iterable[Trajectory]) -> dict[str, Doubles]:
        """``[K]`` sigma of the scorer after every turn, by id."""
        items = [item for item in records if item.turns]
        if not items:
            return {}
        flat_B = _scores(self.scorer, [ids for item in items for ids in turn_sequences(item)])
        ends = np.cumsum([len(item.turns) for item in items])
        return {item.id: flat_B[end - len(item.turns) : end] for item, end in zip(items, ends.tolist(), strict=True)}


def turn_sequences(record: Trajectory) -> list[Ints]:
    """``[K]`` the token ids of a turn's context up to the turn's end."""
    return [record.tape_ids(turn.tape)[: turn.stop] for turn in record.turns]


def fit_process_model(
    groups: Sequence[Group], layer: LabellingStage, *, rules: RewardRules, seed: int
) -> FittedProcess:
    """Fit a scorer to labels of turns, each made from the verdict of its attempt.

    Raises:
        ExperimentError: no attempt can be labelled, or every label is the same.
    """
    known = [(item, seen) for group in groups for item in group.members if (seen := _episode(item, rules)) is not None]
    labels = _labels([seen for _, seen in known], layer)
    if not known or np.ptp(np.concatenate(labels)) == 0.0:
        raise ExperimentError(
            "process reward model: every recorded attempt ended alike, so no turn is better than another; give "
            "attempts with successes and failures"
        )
    ranked = sorted(range(len(known)), key=lambda at: hashlib.sha256(known[at][0].id.encode()).digest())
    held = set(ranked[: len(ranked) // _HELD_OUT])
    kept = [at for at in range(len(known)) if at not in held]
    sequences = [ids for at in kept for ids in turn_sequences(known[at][0])]
    label_B = np.concatenate([labels[at] for at in kept])
    fit = layer.fit
    fitting = Fitting(steps=fit.steps, batch=fit.batch, learning_rate=fit.learning_rate, seed=seed)
    with one_thread():
        scorer = SequenceScorer(vocabulary=1 + max(int(ids.max()) for ids in sequences), hidden=fit.hidden, seed=seed)
        fit_labels(scorer, sequences, label_B, fitting=fitting)
    baseline = float(label_B.mean())
    wanted_B = np.concatenate([labels[at] for at in sorted(held)]) if held else np.zeros(0)
    found_B = _scores(scorer, [ids for at in sorted(held) for ids in turn_sequences(known[at][0])])
    return FittedProcess(
        scorer=scorer,
        labels=label_B.size,
        baseline=baseline,
        held_out=wanted_B.size,
        error=float(((found_B - wanted_B) ** 2).mean()) if wanted_B.size else None,
        baseline_error=float(((baseline - wanted_B) ** 2).mean()) if wanted_B.size else None,
    )


def _episode(item: Trajectory, rules: RewardRules) -> Episode | None:
    seen = read_episode(item, rules)
    return seen if isinstance(seen, Episode) and seen.outcome is not None else None


def _labels(episodes: Sequence[Episode], layer: LabellingStage) -> list[Doubles]:
    targets = [
        process_targets(float(one.outcome or 0.0), turns=one.num_turns, gamma=layer.gamma, direction=layer.direction)
        for one in episodes
    ]
    has_states = all(turn.state is not None for one in episodes for turn in one.turns)
    return pooled_targets(episodes, targets) if has_states else targets


def _scores(scorer: SequenceScorer, sequences: Sequence[Ints]) -> Doubles:
    if not sequences:
        return np.zeros(0)
    with one_thread(), torch.no_grad():
        found_B: Doubles = torch.sigmoid(scorer(sequences)).double().numpy()
    return found_B


def style_changes(model: FittedProcess, pairs: Sequence[tuple[Trajectory, Trajectory]]) -> Doubles:
    """``[B]`` what another wording of the same actions adds to the score of every turn, pair after pair.

    Args:
        model: whose scores.
        pairs: two records of one course of events, in two wordings.

    Raises:
        ArgumentError: two records differ in what was executed, so it is no rewrite of style.
    """
    for one, two in pairs:
        if [turn.action.executed for turn in one.turns] != [turn.action.executed for turn in two.turns]:
            raise ArgumentError(f"{one.id} and {two.id} executed different actions: no rewrite of style")
    before = model.score(one for one, _ in pairs)
    after = model.score(two for _, two in pairs)
    parts = [after[two.id] - before[one.id] for one, two in pairs]
    return np.concatenate([np.zeros(0), *parts])
