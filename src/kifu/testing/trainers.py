"""Conformance of a `Trainer`: gradients do not depend on how rows are packed, and a refused step moves nothing.

Axes: ``N`` trained tokens of a row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from kifu.batching import Cost, Layout, PackedBatch, Row, pack_rows
from kifu.errors import KifuError
from kifu.objectives import Loss, Objective, Terms
from kifu.policy import Engine, StepResult, Trainer

Gradients = Mapping[str, npt.NDArray[np.floating]]
AnyTrainer = Trainer[Any, Any]


class TrainerBuilder(Protocol):
    """Brings up the engine to check, always with the same weights."""

    def __call__(self, *, activation_checkpointing: bool) -> Engine:
        """A fresh engine."""
        ...


class TrainerCheckError(KifuError, AssertionError):
    """A trainer breaks its contract."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainerCheck:
    """What to check with."""

    rows: tuple[Row, ...]
    """Several rows, some with a common prefix and different credit."""
    objective: Objective
    gradients: Callable[[AnyTrainer], Gradients]
    """Reads the accumulated gradients."""
    tolerance: float = 1e-5
    """Largest norm of a difference, relative to the norm."""
    layouts: tuple[Layout, ...] = ("tree", "rows")
    checkpointing: bool = True
    """Whether to repeat with activation checkpointing."""


SHARE_ALWAYS = Cost(keys_per_token=float("inf"))
"""Under this cost every common prefix is shared."""


def check_trainer(build: TrainerBuilder, check: TrainerCheck) -> list[str]:
    """Run every check; return what was found, one line each.

    Raises:
        TrainerCheckError: what was found, what was expected.
    """
    return [
        check_packing(build, check),
        check_state(build, check),
        check_refusals(build, check),
        check_publishing(build, check),
    ]


def check_packing(build: TrainerBuilder, check: TrainerCheck) -> str:
    """One gradient, whatever the layout, the micro-batches and the checkpointing."""
    longest = max(row.token_ids.size for row in check.rows)
    total = sum(row.token_ids.size for row in check.rows)
    packings = {
        f"{layout}, at most {limit} nodes": pack_rows(check.rows, max_nodes=limit, layout=layout, cost=SHARE_ALWAYS)
        for layout in check.layouts
        for limit in (longest, 2 * longest, 2 * total)
    }
    packings["one row at a time"] = [
        batch for row in check.rows for batch in pack_rows([row], max_nodes=longest, layout="rows")
    ]
    wanted = _gradients(build(activation_checkpointing=False).trainer, packings["one row at a time"], check)
    _expect(_norm(wanted) > 0, "a gradient to compare", "none; give rows with credit")
    worst = 0.0
    for checkpointing in (False, True) if check.checkpointing else (False,):
        trainer = build(activation_checkpointing=checkpointing).trainer
        clean = trainer.state()
        for what, batches in packings.items():
            trainer.load_state(clean)
            distance = _distance(_gradients(trainer, batches, check), wanted)
            worst = max(worst, distance)
            where = f"{what}, checkpointing {checkpointing}"
            _expect(distance <= check.tolerance, f"{where}: the gradient within {check.tolerance}", distance)
    return f"{len(packings)} packings give one gradient, largest relative difference {worst:.1e}"


def check_state(build: TrainerBuilder, check: TrainerCheck) -> str:
    """A step from one state always gives the same weights, in this trainer and in a fresh one."""
    batches = pack_rows(check.rows, max_nodes=_limit(check), layout=check.layouts[0])
    trainer = build(activation_checkpointing=False).trainer
    _step(trainer, batches, check.objective)
    saved = trainer.state()
    results = []
    for again in (trainer, trainer, build(activation_checkpointing=False).trainer):
        again.load_state(saved)
        result = _step(again, batches, check.objective)
        _expect(result.applied, "an applied step", result)
        results.append(again.publish())
    for one, two in pairwise(results):
        _expect(one.digest() == two.digest(), "bit-equal weights after one step from one state", "other weights")
        _expect(one.version == two.version, "the number of publishes in the state", (one.version, two.version))
    return "a step from a saved state is repeated bit for bit"


def check_refusals(build: TrainerBuilder, check: TrainerCheck) -> str:
    """Nothing moves without credit, with a loss that is not finite, or without a batch."""
    trainer = build(activation_checkpointing=False).trainer
    batches = pack_rows(check.rows, max_nodes=_limit(check), layout=check.layouts[0])
    _step(trainer, batches, check.objective)
    before = trainer.publish().digest()
    equal = [replace(row, advantages=np.zeros_like(row.advantages)) for row in check.rows]
    degenerate = pack_rows(equal, max_nodes=_limit(check), layout=check.layouts[0])
    cases: dict[str, Callable[[], StepResult]] = {
        "no batch": trainer.optim_step,
        "a batch without credit": lambda: _step(trainer, degenerate, check.objective),
        "a loss that is not a number": lambda: _step(trainer, batches, _Broken(check.objective)),
    }
    for what, run in cases.items():
        result = run()
        _expect(not result.applied and bool(result.why), f"{what}: a refused step that says why", result)
        _expect(trainer.publish().digest() == before, f"{what}: weights as before", "moved weights")
    named = _step(trainer, batches, _Broken(check.objective)).why
    first = check.rows[0].trajectory
    _expect(first in named, f"the message to name trajectory {first}", named)
    _expect(_step(trainer, batches, check.objective).applied, "the next good step to be applied", "it was refused")
    return "steps without a finite gradient move nothing"


def check_publishing(build: TrainerBuilder, check: TrainerCheck) -> str:
    """Versions count publishes; what was published does not change afterwards."""
    trainer = build(activation_checkpointing=False).trainer
    first = trainer.publish()
    digest = first.digest()
    _step(trainer, pack_rows(check.rows, max_nodes=_limit(check), layout=check.layouts[0]), check.objective)
    second = trainer.publish()
    _expect(first.version == 0 and second.version == 1, "versions 0 and 1", (first.version, second.version))
    _expect(first.digest() == digest, "a published version to stay as it was", "it changed with the next step")
    _expect(second.digest() != digest, "a step to change the weights", "equal weights")
    return "publishes are numbered and immutable"


class _Broken:
    """An objective that gives nan."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    @property
    def needs_entropy(self) -> bool:
        return self._objective.needs_entropy

    def __call__(self, terms: Terms) -> Loss:
        loss = self._objective(terms)
        return Loss(total=loss.total * torch.nan, stats=loss.stats)


def _limit(check: TrainerCheck) -> int:
    return 2 * max(int(row.token_ids.size) for row in check.rows)


def _step(trainer: AnyTrainer, batches: Sequence[PackedBatch], objective: Objective) -> StepResult:
    for batch in batches:
        trainer.forward_backward(batch, objective)
    return trainer.optim_step()


def _gradients(trainer: AnyTrainer, batches: Sequence[PackedBatch], check: TrainerCheck) -> Gradients:
    for batch in batches:
        trainer.forward_backward(batch, check.objective)
    return {name: np.array(value) for name, value in check.gradients(trainer).items()}


def _norm(gradients: Gradients) -> float:
    return float(np.sqrt(sum(float((value.astype(np.float64) ** 2).sum()) for value in gradients.values())))


def _distance(found: Gradients, wanted: Gradients) -> float:
    _expect(set(found) == set(wanted), "gradients of the same parameters", sorted(set(found) ^ set(wanted))[:3])
    return _norm({name: found[name] - wanted[name] for name in wanted}) / _norm(wanted)


def _expect(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise TrainerCheckError(f"trainer: expected {expected}; found {found}")
