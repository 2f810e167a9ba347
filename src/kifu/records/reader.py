"""Reading a run's records, also while it is being written; nothing is trusted before its digest was verified."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kifu.errors import StorageError
from kifu.records.chain import read_chain
from kifu.records.parts import MANIFEST, Part, read_part
from kifu.records.rows import Row, from_row
from kifu.records.trajectory import Trajectory
from kifu.records.wal import Frame, read_wal, wal_files

_TRIES = 100

STORED = "stored"
"""Folder of a run with copies of the records of others that it learned from: ``stored/<number>/records``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is not as promised."""

    what: str
    part: str | None = None
    """File it was found in, relative to the run folder."""
    trajectory: str | None = None


class RunReader:
    """The records of a run folder as they stand when it is opened."""

    def __init__(self, folder: str | Path, *, expected_head: str | None = None) -> None:
        """Verify the manifest and note what is in the log.

        Args:
            folder: the run folder; another process may be writing it.
            expected_head: manifest head noted in ``run.json`` or a checkpoint; it must still be in the manifest.

        Raises:
            AlteredError: the manifest or the log differs from what was promised.
            FormatError: written by a newer kifu.
            StorageError: not a run folder.
        """
        self.folder = Path(folder)
        self._records = self.folder / "records"
        if not self._records.is_dir():
            raise StorageError(f"{self.folder}: no folder `records`; expected a run folder made by `kifu train`")
        self._logged = _logged_rows(self.folder / "wal")  # before the manifest: what is sealed meanwhile is in both
        path = self._records / MANIFEST
        chain = read_chain(path, expected_head=expected_head)
        self.parts: tuple[Part, ...] = tuple(
            Part.of(line, where=f"{path}, line {at}") for at, line in enumerate(chain.lines, start=1)
        )
        self.head = chain.head

    def rows(self, part: Part) -> list[Row]:
        """The verified rows of one part.

        Raises:
            AlteredError: the part is missing or not what the manifest promises.
        """
        return read_part(self._records, part)

    def trajectories(self, *, live: bool = True) -> Iterator[Trajectory]:
        """Every record once: parts in order, then what the log holds, in order of their keys.

        Args:
            live: include accepted trajectories that are not sealed yet.
        """
        sealed: set[str] = set()
        for part in self.parts:
            for row in self.rows(part):
                sealed.add(row["trajectory_id"])
                yield from_row(row)
        if live:
            rest = [from_row(row) for name, row in self._logged.items() if name not in sealed]
            yield from sorted(rest, key=lambda trajectory: trajectory.key)

    def find(self, trajectory_id: str) -> Trajectory:
        """One record by its id.

        Raises:
            StorageError: the run has no such record.
        """
        if trajectory_id in self._logged:
            return from_row(self._logged[trajectory_id])
        for part in self.parts:
            for row in self.rows(part):
                if row["trajectory_id"] == trajectory_id:
                    return from_row(row)
        raise StorageError(f"{self.folder}: no record `{trajectory_id}`; `kifu show` without an id lists them")


def _logged_rows(folder: Path) -> dict[str, Row]:
    """Rows in the log by trajectory id; a file cut while it is read has moved to a part or to a newer file."""
    for _ in range(_TRIES):
        try:
            frames: list[Frame] = [frame for path in wal_files(folder) for frame in read_wal(path).frames]
        except FileNotFoundError:
            continue
        return {frame.id: frame.body for frame in frames if frame.kind == "trajectory"}
    raise StorageError(f"{folder}: the log changed {_TRIES} times while it was read; try again")
