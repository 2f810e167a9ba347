"""The axes on which methods differ, read off a method's own value: its plan, its objective, its reduction, its card."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

from kifu.algorithms.composition import Algorithm, options_of
from kifu.objectives import PolicyObjective, ScoreFunction, Surrogate, extreme_rule, level_of, unit_of


def axes_of(algorithm: Algorithm) -> dict[str, str]:
    """Axis to what the method does there.

    Taken from the value itself: two settings of one method differ here where their options make them differ.
    """
    card, plan, objective = algorithm.card, algorithm.plan, algorithm.objective()
    surrogate, ratio = surrogate_of(objective), ratio_of(objective)
    policy = objective if isinstance(objective, PolicyObjective) else None
    found = {
        "data source": str(card.data),
        "feedback": ", ".join(map(str, card.feedback)),
        "advantage": _first_line(type(algorithm).credit.__doc__),
        "credited unit": card.decision_unit,
        "turn": card.turn,
        "loss": type(objective).__name__ if surrogate is None else type(surrogate).__name__,
        "ratio level": "none" if ratio is None else described(level_of(ratio)),
        "extreme ratios": "no ratio is taken" if surrogate is None else extreme_rule(surrogate),
        "reduction": unit_of(algorithm.reduction),
        "age and reuse": card.freshness,
        "updates": card.updates,
    }
    if policy is not None:
        found |= {
            "entropy bonus": described(policy.entropy),
            "value regression": described(policy.value),
            "reference": described(policy.kl),
        }
    names = {"selection": "group filter", "data": "data in hand", "rollout": "rollout plan"}
    for item in fields(plan):
        found[names.get(item.name, item.name.replace("_", " "))] = described(getattr(plan, item.name))
    return found


def differing_axes(one: Algorithm, other: Algorithm) -> dict[str, tuple[str, str]]:
    """The axes on which two methods differ, and the options they share under one name with another value."""
    first, second = axes_of(one), axes_of(other)
    found = {
        axis: (first.get(axis, "none"), second.get(axis, "none"))
        for axis in dict.fromkeys([*first, *second])
        if first.get(axis, "none") != second.get(axis, "none")
    }
    mine, yours = options_of(one), options_of(other)
    for name in (name for name in mine if name in yours and mine[name] != yours[name]):
        found[f"option {name}"] = (described(mine[name]), described(yours[name]))
    return found


def surrogate_of(objective: object) -> Surrogate | None:
    """The surrogate an objective holds, at any depth; None for one that holds none."""
    if not is_dataclass(objective):
        return None
    for item in fields(objective):
        value = getattr(objective, item.name)
        if isinstance(value, Surrogate):
            return value
        inner = surrogate_of(value)
        if inner is not None:
            return inner
    return None


def ratio_of(objective: object) -> Surrogate | None:
    """The surrogate an objective holds, where a ratio enters it."""
    surrogate = surrogate_of(objective)
    return None if isinstance(surrogate, ScoreFunction) else surrogate


def described(value: object) -> str:
    """A choice as people read it: the name of the choice and what it sets."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {described(item)}" for key, item in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(map(described, value)) or "none"
    if is_dataclass(value):
        inner = ", ".join(f"{item.name} {described(getattr(value, item.name))}" for item in fields(value))
        return f"{type(value).__name__}({inner})" if inner else type(value).__name__
    return str(value)


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n", 1)[0]
