"""``metrics.jsonl``: one JSON object per step. For people: no code reads a metric to decide anything."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from kifu.errors import AlteredError, StorageError, UsageError
from kifu.monitor.events import EventWriter
from kifu.monitor.runfolder import write_atomic
from kifu.records.chain import parsed, write_all
from kifu.records.files import storing

MetricValue: TypeAlias = "float | int | str | bool | None"

METRICS: Mapping[str, str] = {
    "stage": "part of the experiment the step belongs to, e.g. imitation before reinforcement",
    "step": "index of the step, from 0",
    "seconds": "wall seconds the step took, evaluation included",
    "cpu_seconds": "CPU seconds of all threads and finished children in the step",
    "success": "mean success of the step's training rollouts that have a verdict; null without one. In a step of "
    "imitation the attempts are demonstrations, and it says how often those succeed",
    "ledger": "rollouts by bucket closed in this step, with `closed`",
    "policy_version": "version the step's update published",
    "reward": "mean reward of the step's rollouts that have one",
    "rollouts": "rollouts that ended in the step, errors included",
    "informative_groups": "groups whose members' rewards differ",
    "groups": "groups that were complete",
    "copies": "places of the update that hold a copy of a group, the group's own place not counted",
    "times_used": "most uses any token of the update has had by now: replay, copies and epochs",
    "replayed": "rollouts of the step in whose place the record of an earlier one was trained",
    "branches": "rollouts of the step that left another one",
    "shared_tokens": "tokens before the points where they left, which they did not cost",
    "turns": "mean turns of the step's rollouts",
    "trained_tokens": "sampled tokens in the step's loss, each once",
    "sampled_tokens": "tokens the policy sampled in the step",
    "forwarded_nodes": "token positions the trainer forwarded",
    "positions_fed": "token positions the sampler forwarded",
    "positions_refed": "of those, positions computed again after an eviction",
    "positions_reused": "token positions kept from an earlier turn or from the group's prompt, not forwarded again",
    "evictions": "contexts whose kept state was given to another one while their rollout went on",
    "forwards": "rounds of the sampler; one of more token rows than a forward may have takes several forwards",
    "grad_norm": "norm of the gradient before clipping",
    "learning_rate": "learning rate of the step",
    "applied": "whether the optimizer step was applied",
    "loss": "summed loss of the step, denominators inside",
    "entropy": "mean entropy of sampled tokens, nats",
    "ratio_error": "largest |logprob recomputed - recorded| before the first update of the step, nats",
    "rollouts_per_second": "rollouts over wall seconds of collection",
    "tokens_per_second": "sampled tokens over wall seconds of collection",
    "success_per_rollout": "successes over rollouts used, errors included",
    "peak_rss_bytes": "largest resident set of the process so far",
}
"""Every metric and its meaning."""

FAMILIES: Mapping[str, str] = {
    "evaluation/": "held-out success after the step: `evaluation/success`, `/low`, `/high`, `/tasks`, `/version`",
    "family/": "success of training rollouts by task family: `family/<name>`",
    "objective/": "sums and counts of the objective: `objective/<stat>`",
    "stop/": "rollouts by stop reason: `stop/<reason>`",
    "time/": "seconds and share by stage: `time/<stage>_s`, `time/<stage>_share`",
}
"""Prefixes of metrics whose names depend on the run."""


def undocumented(names: Iterable[str]) -> list[str]:
    """Names that stand neither in `METRICS` nor under a prefix of `FAMILIES`."""
    return sorted(name for name in names if name not in METRICS and not name.startswith(tuple(FAMILIES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One line of the file."""

    step: int
    seconds: float
    cpu_seconds: float
    success: float | None
    """None when no rollout of the step has a verdict."""
    ledger: Mapping[str, int | bool]
    extra: Mapping[str, MetricValue] = field(default_factory=dict)
    """Further metrics by name."""

    def __post_init__(self) -> None:
        clash = sorted({"step", "seconds", "cpu_seconds", "success", "ledger"} & set(self.extra))
        if clash:
            raise UsageError(
                f"metrics of step {self.step}: {clash} stand both as a field and in `extra`; drop the latter"
            )

    def to_json(self) -> dict[str, Any]:
        """The object as written. NaN and infinities become null: JSON has no word for them."""
        whole: dict[str, Any] = {
            "step": self.step,
            "seconds": round(self.seconds, 6),
            "cpu_seconds": round(self.cpu_seconds, 6),
            "success": self.success,
            "ledger": dict(self.ledger),
            **self.extra,
        }
        return {name: None if isinstance(item, float) and not isfinite(item) else item for name, item in whole.items()}


class MetricsWriter:
    """Appends one line per step.

    Args:
        path: the run's ``metrics.jsonl``.
        resume_at: lines of this step and later ones are dropped first: the steps are run again. None keeps all whole
            lines. A torn last line is dropped in any case.
        events: also receives every number, for TensorBoard.
    """

    def __init__(self, path: Path, *, resume_at: int | None = None, events: EventWriter | None = None) -> None:
        self._path = path
        self._events = events
        if path.exists():
            kept = [row for row in read_metrics(path) if resume_at is None or row["step"] < resume_at]
            write_atomic(path, b"".join(_line(row) for row in kept))
        with storing("metrics", path):
            self._file = path.open("ab", buffering=0)

    def write(self, metrics: StepMetrics) -> None:
        """Append the line and make it durable.

        Raises:
            DiskFullError: no space.
        """
        row = metrics.to_json()
        with storing(f"the metrics of step {metrics.step}", self._path):
            write_all(self._file.fileno(), _line(row))
            os.fsync(self._file.fileno())
        if self._events is not None:
            self._events.scalars(metrics.step, _numbers(row))

    def close(self) -> None:
        """Close the file and the events; closing twice is fine."""
        self._file.close()
        if self._events is not None:
            self._events.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines, in order; safe while a run writes: a last line without its newline is left out.

    Raises:
        AlteredError: a whole line is not what a run writes.
        StorageError: the file cannot be read.
    """
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    except OSError as cause:
        raise StorageError(f"{path}: cannot read the metrics: {cause.strerror}") from cause
    return [_read_line(path, number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line.strip()]


def collection_s(rows: Iterable[Mapping[str, Any]]) -> float:
    """Wall seconds in which the rollouts of these lines were collected."""
    return sum((row["rollouts"] / row["rollouts_per_second"] for row in rows if row.get("rollouts_per_second")), 0.0)


def time_shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Fraction by stage of all seconds that these lines count; empty where they count none."""
    names = sorted({name for row in rows for name in row if name.startswith("time/") and name.endswith("_s")})
    seconds = {name[len("time/") : -len("_s")]: sum(row.get(name) or 0.0 for row in rows) for name in names}
    total = sum(seconds.values())
    return {stage: spent / total for stage, spent in seconds.items()} if total else {}


def _read_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = parsed(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or type(found.get("step")) is not int:
        raise AlteredError(
            f"{path}, line {number}: found {line[:40]!r}, expected a JSON object with its `step`. {_ADVICE}"
        )
    for name, item in {**dict.fromkeys(_ALWAYS), **found}.items():
        wanted = _wanted(name, item)
        if wanted is not None:
            raise AlteredError(f"{path}, line {number}: `{name}`: found {item!r:.40}, expected {wanted}. {_ADVICE}")
    return found


_ADVICE = "Nothing is worked out from metrics: delete the line, or restore the file from a copy."
_ALWAYS = ("seconds", "cpu_seconds")


def _wanted(name: str, item: object) -> str | None:
    """What a known metric must be, where the item is something else; of one that nobody knows, nothing is."""
    match name:
        case "stage":
            return None if isinstance(item, str) else "a text"
        case "ledger":
            return None if isinstance(item, dict) and all(map(_is_number, item.values())) else "counts by bucket"
        case _ if undocumented([name]) or _is_number(item) or (item is None and name not in _ALWAYS):
            return None
        case _:
            return "a number" if name in _ALWAYS else "a number or null"


def _is_number(item: object) -> bool:
    try:
        return isinstance(item, (int, float)) and isfinite(float(item))
    except OverflowError:
        return False


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, item in row.items():
        parts = {f"{name}/{key}": value for key, value in item.items()} if isinstance(item, dict) else {name: item}
        flat.update({key: float(value) for key, value in parts.items() if isinstance(value, (int, float))})
    flat.pop("step", None)
    return flat
