"""The log of effects of a run against what its records, its checkpoints and ``run.json`` name."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kifu.errors import AlteredError
from kifu.records import GENESIS, StopReason, Trajectory
from kifu.rollout.session import EFFECTS_END, EFFECTS_HEAD
from kifu.sandbox import EFFECTS, EffectFile, EffectHead, check_effects


def effects_problems(
    root: Path, trajectories: Iterable[Trajectory], *, seals: Mapping[str, str | None]
) -> tuple[str, ...]:
    """What is wrong with a log, everything that is noted elsewhere looked up.

    A record names the chain's line after each turn and its last one; both must stand in a chain of that episode's
    name, and nothing may follow the last. The seals name the whole file as it was when they were noted.

    Args:
        root: folder with the log.
        trajectories: the records.
        seals: of the file, by where they are noted.

    Raises:
        StorageError: a record cannot be read.
    """
    path, heads, ends = root / EFFECTS, list[EffectHead](), dict[str, tuple[str, EffectHead]]()
    problems: list[str] = []
    for item in trajectories:
        for index, kind, head in _named(item):
            heads.append(head)
            if item.branch is not None and index < item.branch.turn:
                continue  # its parent's, in the parent's chain
            if re.fullmatch(rf"{re.escape(item.id)}(~\d+)?", head.chain) is None:
                problems.append(f"record {item.id}: turn {index} names chain {head.chain}, which is another episode's")
            elif kind == EFFECTS_END and not _may_go_on(item):
                ends[head.chain] = (item.id, head)
    noted = {where: seal for where, seal in seals.items() if seal not in (None, GENESIS)}
    if not path.exists() and not heads and not noted:
        return ()
    report = check_effects(path, anchors=heads)
    problems += report.problems
    if report.unisolated:
        problems.append(
            f"{len(report.unisolated)} chains, {report.unisolated[0]} the first, are of sandboxes without isolation: "
            "what ran there could change whatever the run's user can, records and verdicts too"
        )
    problems += _cut(path, noted)
    for chain, (record, end) in ends.items():
        found = report.heads.get(chain)
        if found is not None and found.count > end.count:
            problems.append(
                f"chain {chain}: holds {found.count} lines, record {record} ended after {end.count}: lines were added"
            )
    return tuple(problems)


def durable_seal(file: EffectFile | None) -> str:
    """Seal of the last line of a run's log, durable by now; that of an empty log where it keeps none."""
    if file is None:
        return GENESIS
    file.flush()
    return file.seal


def check_seals(root: Path, seals: Mapping[str, str | None]) -> None:
    """Refuse to go on with a log that lost lines: its next seal would hide that.

    Raises:
        AlteredError: a seal is not in the file.
    """
    found = _cut(root / EFFECTS, {where: seal for where, seal in seals.items() if seal not in (None, GENESIS)})
    if found:
        raise AlteredError(
            f"{root / EFFECTS}: {'; '.join(found)}. Restore the file from a copy to go on with this run; `kifu audit` "
            "says what else is wrong."
        )


def _cut(path: Path, noted: Mapping[str, str | None]) -> list[str]:
    """Seals that no line of the file carries any more."""
    if not noted:
        return []
    lines = path.read_bytes().splitlines() if path.exists() else []
    present = {found[1].decode() for line in lines if (found := _SEAL.search(line)) is not None}
    return [
        f"seal {str(seal)[:12]} noted in {where} is not there: lines were cut off or rewritten"
        for where, seal in noted.items()
        if seal not in present
    ]


_SEAL = re.compile(rb'"seal":"([0-9a-f]{64})"}\Z')


def _named(trajectory: Trajectory) -> Iterator[tuple[int, str, EffectHead]]:
    for turn in trajectory.turns:
        for event in turn.events:
            if event.kind in (EFFECTS_HEAD, EFFECTS_END):
                detail = {name: str(event.detail.get(name, 0)) for name in ("chain", "digest", "count")}
                count = int(detail["count"]) if detail["count"].isdecimal() else 0
                yield turn.index, event.kind, EffectHead(chain=detail["chain"], digest=detail["digest"], count=count)


def _may_go_on(trajectory: Trajectory) -> bool:
    """Whether a call that was left running may still have written when the episode was over."""
    return trajectory.outcome.infra_error or trajectory.outcome.reason is StopReason.TIME_LIMIT
