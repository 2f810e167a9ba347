"""Under which conditions runs were made, and where they differ: read off frozen protocols, field by field."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kifu.errors import UsageError
from kifu.monitor import Tables, leaves


class Condition(StrEnum):
    """What must be equal before a difference in success speaks of the methods."""

    ENVIRONMENT = "environment"
    """The whole environment layer but for what a cut is worth, and on what and how is evaluated."""
    MODEL = "model"
    """The whole policy layer: weights, tokenizer, decoding, controller, memory."""
    BUDGET = "budget"
    """Rollouts used by a run."""
    VERIFIER = "verifier"
    """Who judged the evaluations."""
    REDUCTION = "reduction unit"
    """What counts as one example in the loss."""


_FIELDS = {"update.reduction": Condition.REDUCTION, "environment.on_truncation": None}
_LAYERS = {"environment": Condition.ENVIRONMENT, "evaluation": Condition.ENVIRONMENT, "policy": Condition.MODEL}
_WORLD = ("id", "version", "options", "tasks_digest", "source")
"""Fields of the environment layer that say what a task is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which rows differ."""

    condition: Condition | None
    """None: the field belongs to the method, which is what is compared."""
    field: str
    values: tuple[Any, ...]
    """One a row; None where a row's protocol has no such field."""

    def __post_init__(self) -> None:
        """Refuse a difference that is none."""
        if all(value == self.values[0] for value in self.values):
            raise UsageError(f"{self.field}: all values are {self.values[0]!r}, expected at least two different ones")

    @property
    def other_tasks(self) -> bool:
        """Whether equal task ids need not be equal tasks."""
        layer, _, rest = self.field.partition(".")
        return layer == "environment" and rest.partition(".")[0] in _WORLD


def protocol_differences(protocols: Sequence[Tables]) -> Iterator[Difference]:
    """Every field of the frozen protocols that is not the same in all of them, in the order of the layers."""
    flat = [dict(leaves(tables)) for tables in protocols]
    for field in dict.fromkeys(name for fields in flat for name in fields):
        yield from difference(_condition(field), field, [fields.get(field) for fields in flat])


def difference(condition: Condition | None, field: str, values: Sequence[object]) -> Iterator[Difference]:
    """The difference, where there is one."""
    if any(value != values[0] for value in values):
        yield Difference(condition=condition, field=field, values=tuple(values))


def _condition(field: str) -> Condition | None:
    return _FIELDS[field] if field in _FIELDS else _LAYERS.get(field.partition(".")[0])
