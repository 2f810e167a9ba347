"""The reward model of a run: fitted once to pairs of recorded attempts, frozen afterwards.

It is a function of the records, the settings and the run's seed: a resumed run fits the same one again.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kifu.credit import preference_pairs
from kifu.engines.recurrent.threads import one_thread
from kifu.errors import ExperimentError
from kifu.objectives import Fitting, SequenceScorer, fit_preferences, preference_accuracy
from kifu.records import Group, Ints, Trajectory
from kifu.training.experiment.credit_layers import Fit

_HELD_OUT = 5
"""One pair in so many is kept for the accuracy."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedModel:
    """A scorer and how good it is on pairs it did not see."""

    scorer: SequenceScorer
    pairs: int
    """It was fitted to."""
    held_out: int
    accuracy: float | None
    """Share of held-out pairs in the right order; None without any."""

    def score(self, records: Iterable[Trajectory]) -> dict[str, float]:
        """The score of every record by id, over the whole sequence its last turn saw and wrote."""
        items = list(records)
        if not items:
            return {}
        with one_thread(), torch.no_grad():
            scores = self.scorer([_sequence(item) for item in items]).tolist()
        return {item.id: float(value) for item, value in zip(items, scores, strict=True)}


def fit_reward_model(groups: Sequence[Group], layer: Fit, *, seed: int) -> FittedModel:
    """Fit a scorer to the preferences between stored attempts at one task.

    Raises:
        ExperimentError: no two attempts at a task differ in reward.
    """
    pairs = [pair for group in groups for pair in _pairs(group)]
    if not pairs:
        raise ExperimentError(
            "reward model: no two recorded attempts at one task differ in reward, so nothing is preferred to anything; "
            "give attempts with successes and failures"
        )
    ranked = sorted(pairs, key=lambda pair: hashlib.sha256(pair[0].tobytes() + b"|" + pair[1].tobytes()).digest())
    held = ranked[: len(ranked) // _HELD_OUT]
    kept = ranked[len(held) :]
    vocabulary = 1 + max(int(ids.max()) for pair in kept for ids in pair)
    fitting = Fitting(steps=layer.steps, batch=layer.batch, learning_rate=layer.learning_rate, seed=seed)
    with one_thread():
        scorer = SequenceScorer(vocabulary=vocabulary, hidden=layer.hidden, seed=seed)
        fit_preferences(scorer, kept, fitting=fitting)
        accuracy = preference_accuracy(scorer, held)
    return FittedModel(scorer=scorer, pairs=len(kept), held_out=len(held), accuracy=accuracy)


def _pairs(group: Group) -> list[tuple[Ints, Ints]]:
    members = [member for member in group.members if not member.outcome.infra_error and member.turns]
    chosen = preference_pairs([member.reward for member in members], names_G=[member.id for member in members])
    return [(_sequence(members[best]), _sequence(members[worst])) for best, worst in chosen]


def _sequence(record: Trajectory) -> Ints:
    tape = record.turns[-1].tape if record.turns else 0
    ids = record.tape_ids(tape)
    return ids if ids.size else np.zeros(1, dtype=np.int32)
