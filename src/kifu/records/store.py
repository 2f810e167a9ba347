"""The store of a run: one writer that loses nothing it accepted, and readers that trust nothing unverified."""

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from kifu.errors import AlteredError, DiskFullError, KifuError, LockedError, RecordError
from kifu.records.chain import ChainedLog, read_chain
from kifu.records.crash import crash_point
from kifu.records.files import make_folder, storing, sweep_temporaries
from kifu.records.parts import MANIFEST, Part, part_ids, read_part, write_part
from kifu.records.rows import Row, from_row, to_row
from kifu.records.trajectory import Trajectory
from kifu.records.wal import Durable, Frame, WalWriter, read_wal, wal_files


class RunLock:
    """Holds the file ``lock`` of a run folder, so that one process writes it.

    A forked child, e.g. of an environment, does not hold it: it would keep a finished run locked as long as it lives.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            LockedError: another store has it; the message names its process.
        """
        path = make_folder(folder) / "lock"
        with storing("the lock", path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            owner = os.read(self._handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._handle)
            raise LockedError(
                f"{folder}: process {owner} is writing this run; wait for it, stop it, or choose another folder"
            ) from cause
        with storing("the lock", path):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)
        _HELD.add(self)

    def release(self) -> None:
        """Give the lock back; releasing twice is fine."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


_HELD: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


def _let_go_of_locks() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_let_go_of_locks)  # closing a copy of the descriptor leaves the parent's lock


def writer_of(folder: str | Path) -> str | None:
    """Process that is writing a run, as its lock names it; None when nobody is."""
    path = Path(folder) / "lock"
    if not path.exists():
        return None
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(handle, 32).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(handle)
    return None


class RunStore:
    """The one writer of a run's records.

    A trajectory is *accepted* when its log frame is durable, *sealed* when it stands in a part whose manifest line is
    durable. A crash anywhere between leaves every accepted trajectory exactly once.
    """

    def __init__(self, folder: str | Path, *, expected_head: str | None = None) -> None:
        """Open or create the records of a run folder and recover what an interrupted writer left.

        Args:
            folder: the run folder.
            expected_head: manifest head noted in ``run.json`` or a checkpoint; it must still be in the manifest.

        Raises:
            LockedError: another process writes this run.
            AlteredError: the manifest, a part or the log differs from what was promised.
        """
        self.folder = Path(folder)
        self._records = make_folder(self.folder / "records")
        self._lock = RunLock(self.folder)
        self._guard = threading.RLock()
        self._pending: dict[str, tuple[Trajectory, Row, Durable]] = {}
        self._notes: dict[str, list[Any]] = {}
        self._digests: dict[str, str] = {}
        try:
            self._open(expected_head)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, expected_head: str | None) -> None:
        sweep_temporaries(self._records)
        path = self._records / MANIFEST
        chain = read_chain(path, expected_head=expected_head)
        self._parts = [Part.of(line, where=f"{path}, line {at}") for at, line in enumerate(chain.lines, start=1)]
        for part in self._parts:
            self._digests |= {row["trajectory_id"]: row["content_digest"] for row in read_part(self._records, part)}
        logs = wal_files(self.folder / "wal")
        kept = list(_surviving([frame for log in logs for frame in read_wal(log).frames], self._digests))
        _drop_unlisted(self._records, self._parts, {frame.id for frame in kept if frame.kind == "trajectory"})
        self._manifest = ChainedLog(path, name="manifest")
        self._wal = WalWriter(self.folder / "wal", number=int(logs[-1].stem) + 1 if logs else 0)
        try:
            written = [self._wal.append(frame) for frame in kept]
            for frame, durable in zip(kept, written, strict=True):
                if frame.kind == "note":
                    self._notes.setdefault(frame.id, []).append(frame.body["note"])
                else:
                    self._pending[frame.id] = (from_row(frame.body), frame.body, durable)
                    self._digests[frame.id] = frame.body["content_digest"]
            for durable in written:
                durable.result()
            self._wal.cut()
        except BaseException:
            self._wal.close()
            self._manifest.close()
            raise

    @property
    def head(self) -> str:
        """Digest of the manifest's last line; note it in ``run.json`` and every checkpoint."""
        return self._manifest.head

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sealed parts, in order."""
        return tuple(self._parts)

    @property
    def pending(self) -> tuple[Trajectory, ...]:
        """Accepted and durable, not yet sealed; in order of their keys."""
        with self._guard:
            found = [trajectory for trajectory, _, durable in self._pending.values() if _succeeded(durable)]
        return tuple(sorted(found, key=lambda trajectory: trajectory.key))

    def digest(self, trajectory_id: str) -> str | None:
        """Content digest of an accepted trajectory, sealed or not; None when it is not known."""
        return self._digests.get(trajectory_id)

    def accept(self, trajectory: Trajectory) -> Durable:
        """Log a trajectory; it is accepted when the future is done. The event loop is never blocked by the disk.

        The same record a second time is accepted once.

        Raises:
            RecordError: the id is taken by another content, or a value cannot be stored.
        """
        row = to_row(trajectory)
        digest = row["content_digest"]
        with self._guard:
            known = self._digests.get(trajectory.id)
            if known is not None and known != digest:
                raise RecordError(
                    f"{trajectory.id} is recorded with content {known[:12]}, now {digest[:12]} is offered; "
                    "a second attempt needs its own attempt number"
                )
            if known is not None:
                return self._pending[trajectory.id][2] if trajectory.id in self._pending else _done()
            durable = self._wal.append(Frame(kind="trajectory", id=trajectory.id, body=row))
            self._digests[trajectory.id] = digest
            self._pending[trajectory.id] = (trajectory, row, durable)
        durable.add_done_callback(lambda done: self._settle(trajectory.id, done))
        return durable

    def _settle(self, trajectory_id: str, durable: Durable) -> None:
        """Forget a trajectory that did not reach the disk, or the notes of one that did."""
        with self._guard:
            if _succeeded(durable):
                self._notes.pop(trajectory_id, None)
            else:
                self._pending.pop(trajectory_id, None)
                self._digests.pop(trajectory_id, None)

    def note(self, trajectory_id: str, body: Any) -> Durable:  # noqa: ANN401 - JSON
        """Log an accepted call of a rollout that is not finished; kept until its trajectory is accepted."""
        with self._guard:
            found = self._notes.setdefault(trajectory_id, [])
            found.append(body)
            return self._wal.append(_note(trajectory_id, len(found) - 1, body))

    def notes(self, trajectory_id: str) -> tuple[Any, ...]:
        """What was noted about an unfinished rollout, in order."""
        with self._guard:
            return tuple(self._notes.get(trajectory_id, ()))

    def seal(self, step: int) -> Part | None:
        """Move the accepted trajectories of this step and earlier ones into a part, in order of their keys.

        The log is cut only after part and manifest line are durable; trajectories of later steps stay in it.

        Raises:
            DiskFullError: nothing changed; seal again when there is space.
        """
        with self._guard:
            chosen = [entry for entry in self._pending.values() if entry[0].key.step <= step]
        for _, _, durable in chosen:
            with suppress(KifuError):  # its acceptor sees the failure; it was never accepted
                durable.result()
        with self._guard:
            chosen = [entry for entry in chosen if _succeeded(entry[2])]
            if not chosen:
                return None
            self._wal.rotate()
            before = dict(self._pending)
        rows = [row for _, row, _ in sorted(chosen, key=lambda entry: entry[0].key)]
        part = write_part(self._records, rows, number=len(self._parts), step=step)
        self._manifest.append(part.line())
        self._parts.append(part)
        sealed = {row["trajectory_id"] for row in rows}
        with self._guard:
            for name in sealed:
                del self._pending[name]
        self._cut([row for name, (_, row, _) in before.items() if name not in sealed])
        return part

    def _cut(self, rows: list[Row]) -> None:
        """Carry over what is not sealed, then remove the older log files."""
        with self._guard:
            frames = [Frame(kind="trajectory", id=row["trajectory_id"], body=row) for row in rows]
            for name, found in self._notes.items():
                frames += [_note(name, at, body) for at, body in enumerate(found)]
            carried = [self._wal.append(frame) for frame in frames]
        crash_point("wal.before_cut")
        with suppress(DiskFullError):  # the older files stay and are cut by the next seal
            for durable in carried:
                durable.result()
            self._wal.cut()
        crash_point("wal.after_cut")

    def close(self) -> None:
        """Write what is pending and release the lock; closing twice is fine."""
        self._wal.close()
        self._manifest.close()
        self._lock.release()

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unfinished(store: RunStore) -> tuple[str, ...]:
    """Ids of the rollouts that have notes and no trajectory yet, in order of their first note."""
    with store._guard:
        return tuple(store._notes)


def forget(store: RunStore, trajectory_id: str) -> None:
    """Drop what was noted about a rollout that will not be finished; the log loses it at the next cut."""
    with store._guard:
        store._notes.pop(trajectory_id, None)


def _succeeded(durable: Durable) -> bool:
    return durable.done() and durable.exception() is None


def _note(trajectory_id: str, at: int, body: Any) -> Frame:  # noqa: ANN401 - JSON
    return Frame(kind="note", id=trajectory_id, body={"at": at, "note": body})


def _done() -> Durable:
    durable: Durable = Future()
    durable.set_result(None)
    return durable


def _surviving(frames: list[Frame], sealed: dict[str, str]) -> Iterator[Frame]:
    """Frames still needed: each unsealed trajectory once, notes of rollouts without a trajectory, each once."""
    finished = set(sealed) | {frame.id for frame in frames if frame.kind == "trajectory"}
    seen: set[bytes] = set()
    for frame in frames:
        if frame.id in sealed or (frame.kind == "note" and frame.id in finished):
            continue
        payload = frame.payload()
        if payload not in seen:
            seen.add(payload)
            yield frame


def _drop_unlisted(folder: Path, parts: list[Part], logged: set[str]) -> None:
    """Remove parts whose manifest line was never written; their rows are still in the log, or the manifest was cut."""
    listed = {part.part for part in parts}
    for path in sorted(folder.glob("part-*.parquet")):
        if path.name in listed:
            continue
        if not part_ids(path) <= logged:
            raise AlteredError(
                f"{path}: not in the manifest and its rows are not in the log: the manifest was cut or rewritten; "
                "restore the manifest from a copy"
            )
        path.unlink()
