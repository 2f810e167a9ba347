"""Learned feedback on turns, as a stage declares it: what it pays to every turn of an update.

Axes: ``K`` turns.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from kifu.credit import Doubles, Episode, hindsight_labels, hindsight_rewards, process_rewards
from kifu.credit.reading import read_episode
from kifu.records import Group, Trajectory
from kifu.training.experiment.credit_layers import HindsightSignal, ProcessSignal
from kifu.training.experiment.stages import Stage
from kifu.training.update.process_model import FittedProcess


def paid_by_signals(
    stage: Stage, groups: Sequence[Group], *, model_of: Callable[[str], FittedProcess]
) -> dict[str, Doubles]:
    """``[K]`` the sum over the stage's signals, for every attempt that has credit; empty without signals.

    Args:
        stage: whose signals.
        groups: attempts of the update; a critic in hindsight compares within each.
        model_of: the process reward model that a stage fitted.
    """
    found: dict[str, Doubles] = {}
    if not stage.credit.signals:
        return found
    for group in groups:
        known = [(item, seen) for item in group.members if isinstance(seen := read_episode(item, stage.rules), Episode)]
        for signal in stage.credit.signals.values():
            for (item, _), paid_K in zip(known, _paid(signal, known, model_of), strict=True):
                found[item.id] = paid_K if item.id not in found else found[item.id] + paid_K
    return found


def _paid(
    signal: ProcessSignal | HindsightSignal,
    known: Sequence[tuple[Trajectory, Episode]],
    model_of: Callable[[str], FittedProcess],
) -> list[Doubles]:
    match signal:
        case ProcessSignal():
            model = model_of(signal.stage)
            scores = model.score(item for item, _ in known)
            return [
                process_rewards(scores[item.id], weight=signal.weight, baseline=model.baseline, pays=signal.pays)
                for item, _ in known
            ]
        case HindsightSignal():
            labels = hindsight_labels([seen for _, seen in known], tolerance=signal.tolerance)
            return [hindsight_rewards(of_one, weight=signal.weight) for of_one in labels]
        case _ as unreachable:
            assert_never(unreachable)
