"""The batch plan: what every optimizer step trains on, written before the step runs.

One line of ``plan.jsonl`` per optimizer step. With the records and the weights it re-derives the batch: which tokens,
under which prefix, with which credit and which factor in the summed loss.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kifu.errors import FormatError, RecordError
from kifu.records.chain import GENESIS, ChainedLog, read_chain
from kifu.records.charges import Charge, Cost
from kifu.records.ledger import Bucket, Ledger
from kifu.records.schema import FORMAT_VERSION, check_format

PLAN = "plan.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive trained tokens of one tape with equal credit and equal weight."""

    tape: int
    start: int
    """First position in the tape's whole sequence."""
    stop: int
    advantage: float
    weight: float
    """Factor in the summed loss: 1 over the denominator of the reduction, times any duplication."""

    def __post_init__(self) -> None:
        if not 1 <= self.start < self.stop:
            raise RecordError(f"plan: run [{self.start}, {self.stop}) of tape {self.tape} is not a range from 1 on")
        if not (isfinite(self.advantage) and isfinite(self.weight)):
            raise RecordError(f"plan: run at {self.start} has advantage {self.advantage} and weight {self.weight}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTarget:
    """One value to regress, for policies with a critic."""

    tape: int
    position: int
    """Position whose state is valued: the last token before the turn's first one."""
    target: float
    old: float
    """As recorded when sampling."""
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Consecutive tokens of one tape that the environment wrote and the policy is taught to predict."""

    tape: int
    start: int
    stop: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """How many rollouts a candidate got of a step's budget, and the prediction that decided it."""

    group: int
    task: str
    success: float
    """Predicted, of a rollout that begins here."""
    rollouts: int
    parent: str | None = None
    """The rollout whose turn is gone on from; None: the task's initial state."""
    turn: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.success <= 1.0 or self.rollouts < 0 or (self.parent is None) is not (self.turn is None):
            raise RecordError(
                f"plan: allocation to {self.task}: success {self.success}, {self.rollouts} rollouts, parent "
                f"{self.parent}, turn {self.turn}; expected a probability, a count, and parent and turn together"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """The part of one trajectory in one optimizer step."""

    trajectory: str
    digest: str
    """Content digest of the record."""
    reward: float | None
    """Task reward the credit was computed from; None is absent, e.g. for demonstrations. That of the record, but at
    most 0 where a limit was exceeded."""
    runs: tuple[Run, ...]
    model_score: float | None = None
    """What a learned reward model said of it, where the credit was computed from that."""
    paid: tuple[float, ...] = ()
    """What learned signals paid every turn, added to its rewards; empty without any."""
    costs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Cost charged to what every turn cost, see `PlanLine.charges`; empty without any."""
    exceeded: tuple[str, ...] = ()
    """Costs whose limits the episode went over."""
    values: tuple[ValueTarget, ...] = ()
    reference: tuple[float, ...] = ()
    """Logprobs of the trained tokens under a frozen reference, in the order of the runs; empty without one."""
    present: tuple[float, ...] = ()
    """Logprobs of the trained tokens under the weights the step starts from, in the order of the runs, where the ratio
    is taken over these; empty where it is taken over the recorded ones."""
    pair: int | None = None
    """Number of its preference pair in the step; the side whose advantages are above 0 is the preferred one."""
    observed: tuple[Observed, ...] = ()
    times_used: int = 1
    """How often the trajectory has been used when this step is over."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", MappingProxyType(dict(self.costs)))

    @property
    def tokens(self) -> int:
        """Trained tokens."""
        return sum(run.stop - run.start for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One optimizer step."""

    step: int
    update: int = 0
    """Number of the optimizer step inside the step: several epochs or mini-batches give several lines."""
    version: int
    """Version of the weights the step starts from."""
    head: str = GENESIS
    """Head of the manifest that promises the records used."""
    micro_batches: tuple[tuple[str, ...], ...]
    """Trajectory ids, in the order they are forwarded."""
    rows: tuple[PlanRow, ...]
    denominators: Mapping[str, float] = field(default_factory=dict)
    """Global figures the weights were divided by, with their unit as name: ``tokens``, ``turns``, ``trajectories``."""
    buckets: Mapping[str, Bucket] = field(default_factory=dict)
    """Every trajectory that left the flight in this step, by id."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Id of a rollout of this step to the id of the record of an earlier step that was credited in its place."""
    allocated: tuple[Allocation, ...] = ()
    """Where the step's budget of rollouts went, for methods that allocate one; on its first line."""
    charges: tuple[Charge, ...] = ()
    """Costs that enter the credit, as rewards or as constraints."""
    ledger: Ledger | None = None
    """Of the step; on its last line."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "denominators", MappingProxyType(dict(self.denominators)))
        object.__setattr__(self, "buckets", MappingProxyType(dict(self.buckets)))
        object.__setattr__(self, "replaced", MappingProxyType(dict(self.replaced)))
        planned = {row.trajectory for row in self.rows}
        placed = {name for micro_batch in self.micro_batches for name in micro_batch}
        if len(planned) != len(self.rows):
            raise RecordError(f"plan of step {self.step}: a trajectory has two rows; count its use in `times_used`")
        if planned != placed:
            raise RecordError(
                f"plan of step {self.step}: rows and micro-batches differ in {sorted(planned ^ placed)[:4]}"
            )

    @property
    def tokens(self) -> int:
        """Trained tokens of the step."""
        return sum(row.tokens for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The fields of its line, without the chain's own; runs are ``[tape, start, stop, advantage, weight]``."""
        return {
            "format": FORMAT_VERSION,
            "step": self.step,
            "update": self.update,
            "version": self.version,
            "head": self.head,
            "micro_batches": [list(names) for names in self.micro_batches],
            "rows": [_row_json(row) for row in self.rows],
            "denominators": {name: float(value) for name, value in self.denominators.items()},
            "buckets": {name: bucket.value for name, bucket in self.buckets.items()},
            "replaced": dict(self.replaced),
            **({"allocated": [asdict(item) for item in self.allocated]} if self.allocated else {}),
            **({"charges": [item.to_json() for item in self.charges]} if self.charges else {}),
            "ledger": None if self.ledger is None else self.ledger.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, where: str = PLAN) -> "PlanLine":
        """Read what `to_json` wrote."""
        check_format(value.get("format"), where)
        try:
            return cls(
                step=value["step"],
                update=value["update"],
                version=value["version"],
                head=value["head"],
                micro_batches=tuple(tuple(names) for names in value["micro_batches"]),
                rows=tuple(_row(item) for item in value["rows"]),
                denominators=value["denominators"],
                buckets={name: Bucket(bucket) for name, bucket in value["buckets"].items()},
                replaced=value.get("replaced", {}),
                allocated=tuple(Allocation(**item) for item in value.get("allocated", ())),
                charges=tuple(Charge(**{**item, "cost": Cost(item["cost"])}) for item in value.get("charges", ())),
                ledger=None if value["ledger"] is None else Ledger.from_json(value["ledger"]),
            )
        except RecordError:
            raise
        except (KeyError, TypeError, ValueError) as cause:
            raise FormatError(f"{where}: a field is missing or of another type: {cause}") from cause


class PlanLog:
    """Appends plan lines to ``plan.jsonl``, durable on return. Crash points: ``plan.before_line`` and so on."""

    def __init__(self, folder: str | Path) -> None:
        """Open the plan of a run folder; an unfinished last line is cut."""
        self._log = ChainedLog(Path(folder) / PLAN, name="plan")

    @property
    def head(self) -> str:
        """Digest of the last line; note it in every checkpoint."""
        return self._log.head

    def append(self, line: PlanLine) -> str:
        """Write a line before its step runs, and give its digest."""
        return self._log.append(line.to_json())

    def close(self) -> None:
        """Give the file back."""
        self._log.close()


def read_plan(folder: str | Path, *, expected_head: str | None = None) -> list[PlanLine]:
    """The verified plan of a run folder.

    Raises:
        AlteredError: a line was changed, dropped or moved, or the tail up to ``expected_head`` was cut off.
    """
    path = Path(folder) / PLAN
    chain = read_chain(path, expected_head=expected_head)
    return [PlanLine.from_json(line, where=f"{path}, line {at}") for at, line in enumerate(chain.lines, start=1)]


def runs_of(tape: int, tokens: Iterable[tuple[int, float, float]]) -> tuple[Run, ...]:
    """Merge ``(position, advantage, weight)`` of one tape, in increasing positions, into as few runs as possible."""
    found: list[Run] = []
    for position, advantage, weight in tokens:
        last = found[-1] if found else None
        if last is not None and (last.stop, last.advantage, last.weight) == (position, advantage, weight):
            found[-1] = Run(tape=tape, start=last.start, stop=position + 1, advantage=advantage, weight=weight)
        else:
            found.append(Run(tape=tape, start=position, stop=position + 1, advantage=advantage, weight=weight))
    return tuple(found)


def _row_json(row: PlanRow) -> dict[str, Any]:
    return {
        "trajectory": row.trajectory,
        "digest": row.digest,
        "reward": None if row.reward is None else float(row.reward),
        "tokens": row.tokens,
        "runs": [[run.tape, run.start, run.stop, float(run.advantage), float(run.weight)] for run in row.runs],
        "values": [
            [item.tape, item.position, float(item.target), float(item.old), float(item.weight)] for item in row.values
        ],
        "reference": [float(value) for value in row.reference],
        "present": [float(value) for value in row.present],
        "pair": row.pair,
        "model_score": row.model_score,
        "paid": [float(value) for value in row.paid],
        **({"costs": {name: [*found] for name, found in row.costs.items()}} if row.costs else {}),
        **({"exceeded": [*row.exceeded]} if row.exceeded else {}),
        "observed": [[run.tape, run.start, run.stop, float(run.weight)] for run in row.observed],
        "times_used": row.times_used,
    }


def _row(value: Mapping[str, Any]) -> PlanRow:
    return PlanRow(
        trajectory=value["trajectory"],
        digest=value["digest"],
        reward=value["reward"],
        runs=tuple(
            Run(tape=tape, start=start, stop=stop, advantage=advantage, weight=weight)
            for tape, start, stop, advantage, weight in value["runs"]
        ),
        values=tuple(
            ValueTarget(tape=tape, position=position, target=target, old=old, weight=weight)
            for tape, position, target, old, weight in value["values"]
        ),
        reference=tuple(value["reference"]),
        present=tuple(value.get("present", ())),
        pair=value.get("pair"),
        model_score=value.get("model_score"),
        paid=tuple(value.get("paid", ())),
        costs={name: tuple(found) for name, found in value.get("costs", {}).items()},
        exceeded=tuple(value.get("exceeded", ())),
        observed=tuple(
            Observed(tape=tape, start=start, stop=stop, weight=weight)
            for tape, start, stop, weight in value.get("observed", ())
        ),
        times_used=value["times_used"],
    )
