"""Who is asked for the facts of a stage's rollouts."""

from collections.abc import Callable
from dataclasses import dataclass

from kifu.credit.scored import GoldScores, NoScores
from kifu.engines import build_engine
from kifu.policy import Sampler, Weights
from kifu.rollout import Scoring
from kifu.training.experiment.prepare import Prepared
from kifu.training.experiment.stages import Stage


def _nothing_to_close() -> None:
    """Where no frozen weights are held."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """The question of a stage, and what must be freed when it is over."""

    scoring: Scoring | None = None
    close: Callable[[], None] = _nothing_to_close


def asked_of(stage: Stage, prepared: Prepared, *, sampler: Sampler, seed: int, first: Weights | None) -> Asked:
    """What is asked about a stage's rollouts, and whom: the run's sampler, or frozen weights in one of their own.

    Args:
        stage: with its method.
        prepared: the experiment.
        sampler: of the run.
        seed: of the run.
        first: weights the stage began with; None for those of the model.
    """
    rule, gold = stage.algorithm.plan.scores, prepared.gold_answer
    if isinstance(rule, NoScores):
        return Asked()
    if isinstance(rule, GoldScores) and rule.weights == "initial":
        frozen = build_engine(prepared.experiment.policy.engine, prepared.engine_spec(stage, seed=seed, initial=first))
        return Asked(scoring=Scoring(rule=rule, scorer=frozen.sampler, gold=gold), close=frozen.close)
    return Asked(scoring=Scoring(rule=rule, scorer=sampler, gold=gold))
