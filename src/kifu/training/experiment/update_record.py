"""How an update treats a rollout, read off a method's own value: for the frozen protocol and whoever compares runs."""

from dataclasses import fields
from typing import Any

from kifu.algorithms import Algorithm, surrogate_of
from kifu.credit.selection import DuplicateInformative
from kifu.credit.sources import SuccessReplay
from kifu.objectives import (
    Objective,
    PolicyObjective,
    ScoreFunction,
    Surrogate,
    extreme_rule,
    length_rule,
    level_name,
    level_of,
    unit_of,
)


def update_record(algorithm: Algorithm, *, max_age: int) -> dict[str, Any]:
    """Where the ratio is taken, what divides, how often and how late a rollout is used, what an extreme weight does.

    Args:
        algorithm: with every option resolved.
        max_age: versions a rollout may lag behind.
    """
    objective, plan = algorithm.objective(), algorithm.plan
    surrogate = surrogate_of(objective)
    copies = isinstance(plan.selection, DuplicateInformative)
    return {
        "ratio_level": _level(surrogate),
        "ratio_computed": _computed(algorithm, surrogate),
        "extreme_weights": "none: no ratio enters the loss" if surrogate is None else extreme_rule(surrogate),
        "denominators": _denominators(objective, unit_of(algorithm.reduction)),
        "length_normalization": length_rule(algorithm.reduction),
        "updates_per_rollout": f"{plan.epochs}{', times its copies in the update' if copies else ''}",
        "age": f"at most {max_age} versions when trained; a replayed success any"
        if isinstance(plan.data, SuccessReplay)
        else f"at most {max_age} versions when trained",
        "selection": type(plan.selection).__name__ + _settings(plan.selection),
        "whitening": f"over the update, {type(plan.whitening).__name__}{_settings(plan.whitening)}"
        if plan.whiten
        else "none",
    }


def _level(surrogate: Surrogate | None) -> str:
    if surrogate is None:
        return "none"
    level = level_name(level_of(surrogate))
    return f"none in the loss; measured per {level}" if isinstance(surrogate, ScoreFunction) else level


def _computed(algorithm: Algorithm, surrogate: Surrogate | None) -> str:
    if surrogate is None:
        return "nowhere: no ratio is taken"
    where = "by the trainer before every optimizer step, at the recorded temperature and support"
    data = algorithm.plan.data
    if isinstance(data, SuccessReplay) and data.ratio == "one":
        return (
            f"{where}, over the logprobs recorded when sampling; replayed rows over those of the step's first weights"
        )
    return f"{where}, over the logprobs recorded when sampling"


def _denominators(objective: Objective, unit: str) -> dict[str, str]:
    """Part of the loss to the unit it is averaged over."""
    if not isinstance(objective, PolicyObjective):
        return {type(objective).__name__: unit}
    parts = {"entropy": objective.entropy, "kl": objective.kl}
    found = {"policy": unit} | {name: unit for name, part in parts.items() if part is not None}
    return found if objective.value is None else {**found, "value": "turn"}


def _settings(value: Any) -> str:  # noqa: ANN401 - any frozen choice of a plan
    known = {item.name: getattr(value, item.name) for item in fields(value)}
    inner = ", ".join(f"{name} {one:g}" if isinstance(one, float) else f"{name} {one}" for name, one in known.items())
    return f" ({inner})" if inner else ""
