"""How much of the gradient trajectories of a kind pulled: by length, by turns, by tool calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kifu.records import PlanLine, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Trajectories that share a label."""

    label: str
    trajectories: int
    share: float
    """Of the run's total ``sum |weight x advantage|`` over trained tokens."""
    each: float
    """Mean share of one trajectory, times the number of trajectories: 1 is the average pull."""


def pull_by(
    plan: Sequence[PlanLine], records: Mapping[str, Trajectory], label: Callable[[Trajectory], str]
) -> list[Pull]:
    """Gradient weight by label, in order of the labels as numbers.

    Args:
        plan: every line of the run.
        records: trajectories by id; rows of unknown ones are left out.
        label: of a trajectory, e.g. its number of turns.
    """
    found: dict[str, float] = {}
    members: dict[str, set[str]] = {}
    for line in plan:
        for row in line.rows:
            if row.trajectory not in records:
                continue
            name = label(records[row.trajectory])
            weight = sum(abs(run.weight * run.advantage) * (run.stop - run.start) for run in row.runs)
            found[name] = found.get(name, 0.0) + weight
            members.setdefault(name, set()).add(row.trajectory)
    total, count = sum(found.values()), sum(len(names) for names in members.values())
    if not total:
        return []
    return [
        Pull(
            label=name,
            trajectories=len(members[name]),
            share=found[name] / total,
            each=found[name] / total * count / len(members[name]),
        )
        for name in sorted(found, key=_order)
    ]


def by_length(trajectory: Trajectory) -> str:
    """Sampled tokens, in powers of two."""
    tokens = trajectory.sampled_tokens
    low = 1 << max(0, tokens.bit_length() - 1)
    return f"{low}-{2 * low - 1}" if tokens > 1 else str(tokens)


def by_turns(trajectory: Trajectory) -> str:
    """Number of turns."""
    return str(len(trajectory.turns))


def by_calls(trajectory: Trajectory) -> str:
    """Number of executed calls."""
    return str(sum(len(turn.action.executed) for turn in trajectory.turns))


def _order(label: str) -> int:
    return int(label.split("-")[0])
