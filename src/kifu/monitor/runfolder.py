"""The folder of one run: where everything lies, and how small files are replaced whole."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kifu.errors import AlteredError, DiskFullError, FormatError, StorageError
from kifu.monitor.facts import PROTOCOL_FILE, RUN_FORMAT, RunFacts, begun_facts, read_facts
from kifu.records import GENESIS, RunReader, write_atomically
from kifu.records.chain import line_digest
from kifu.records.files import FULL

_FOLDERS = ("records", "wal", "weights", "checkpoints", "blobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Paths of a run. Nothing but paths and ``run.json``: each room writes its own files."""

    root: Path

    @classmethod
    def create(cls, root: Path, facts: Mapping[str, Any]) -> "RunFolder":
        """Make the folder and its ``run.json`` with ``facts`` (JSON values) beside the format number.

        Raises:
            StorageError: the folder already holds a run, or something else, or lies in a run, or cannot be written.
            DiskFullError: no space; nothing is left of what was begun.
        """
        folder = cls(root=root)
        if folder.run_json.exists():
            raise StorageError(
                f"{root}: already holds a run. Continue it with `kifu resume {root}`, choose another folder, or remove "
                "this one first, with everything the run recorded."
            )
        if root.exists() and not _is_unused(root):
            raise StorageError(
                f"{root}: exists and is not a run folder; expected a new or empty folder. Choose another."
            )
        around = _run_around(root)
        if around is not None:
            raise StorageError(f"{root}: lies in the run {around}, whose files are its record; choose another folder.")
        try:
            for name in _FOLDERS:
                (root / name).mkdir(parents=True, exist_ok=True)
            folder.write_facts(facts)
        except (OSError, StorageError) as cause:
            discard(folder)
            raise not_begun(root, cause) from cause
        return folder

    @classmethod
    def open(cls, root: Path) -> "RunFolder":
        """Take an existing run.

        Raises:
            StorageError: no run there.
            AlteredError: ``run.json`` is damaged.
            FormatError: written by a newer kifu.
        """
        folder = cls(root=root)
        if not folder.run_json.is_file():
            raise StorageError(f"{root}: no run here (no run.json). Expected the folder a `kifu train` wrote.")
        found = folder.facts().get("format")
        if type(found) is not int:
            raise AlteredError(
                f"{folder.run_json}: `format` is {found!r:.40}, expected a whole number; restore the file from a copy"
            )
        if not 1 <= found <= RUN_FORMAT:
            raise FormatError(
                f"{folder.run_json}: format {found}, this kifu reads up to {RUN_FORMAT}. Upgrade kifu to open this run."
            )
        return folder

    def facts(self) -> dict[str, Any]:
        """What ``run.json`` says; every fact that is there has its type.

        Raises:
            AlteredError: not JSON, or a fact of another type, or not what was written.
        """
        return read_facts(self.run_json)

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Replace ``run.json``; the format number and the digest of all the rest are added."""
        whole = {"format": RUN_FORMAT, **{name: value for name, value in facts.items() if name != "format"}}
        as_read = json.loads(json.dumps(whole))  # JSON makes texts of keys and lists of tuples
        write_json(self.run_json, {**whole, "digest": line_digest(as_read)})

    @property
    def run_json(self) -> Path:
        """Facts about the run."""
        return self.root / "run.json"

    @property
    def protocol(self) -> Path:
        """The frozen experiment."""
        return self.root / "protocol.toml"

    @property
    def records(self) -> Path:
        """Parquet parts and their manifest."""
        return self.root / "records"

    @property
    def wal(self) -> Path:
        """Accepted calls and turns that are not in a part yet."""
        return self.root / "wal"

    @property
    def plan(self) -> Path:
        """Batch plans, each written before its step."""
        return self.root / "plan.jsonl"

    @property
    def metrics(self) -> Path:
        """One object per step, for people."""
        return self.root / "metrics.jsonl"

    @property
    def weights(self) -> Path:
        """Published versions."""
        return self.root / "weights"

    @property
    def checkpoints(self) -> Path:
        """States to go on from."""
        return self.root / "checkpoints"

    @property
    def blobs(self) -> Path:
        """Large values, named by their digest."""
        return self.root / "blobs"

    @property
    def report(self) -> Path:
        """The report page."""
        return self.root / "report.html"

    @property
    def lock(self) -> Path:
        """Held by the one process that writes."""
        return self.root / "lock"


def begun(folder: RunFolder) -> RunFacts:
    """What the run of an experiment noted of itself when it began.

    Raises:
        StorageError: the run is a gateway's, which has no experiment.
        AlteredError: facts are missing or of another type.
    """
    return begun_facts(folder.facts(), path=folder.run_json)


def reader_of(folder: RunFolder) -> RunReader:
    """The run's records, at least as far as ``run.json`` notes their head; another process may be writing them.

    Raises:
        AlteredError: the manifest is missing, cut or changed.
    """
    head = folder.facts().get("head")
    return RunReader(folder.root, expected_head=None if head == GENESIS else head)


def discard(folder: RunFolder) -> None:
    """Take back `RunFolder.create`: empty the folder, so that another run can begin there.

    Only for a run that published and recorded nothing, by the process that created it.
    """
    if not folder.root.is_dir():
        return
    for path in [folder.run_json, *folder.root.iterdir()]:  # whatever is left without run.json is no run
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def not_begun(root: Path, cause: Exception) -> StorageError:
    """What to say of a run that could not begin and left nothing."""
    system = cause if isinstance(cause, OSError) else cause.__cause__
    why = system.strerror if isinstance(system, OSError) else str(cause)
    if isinstance(cause, DiskFullError) or (isinstance(system, OSError) and system.errno in FULL):
        return DiskFullError(
            f"{root}: no space left to begin a run, and nothing of it was kept. Free space on this device and start "
            "again, or choose another folder with --out."
        )
    return StorageError(f"{root}: a run cannot begin here: {why}. Choose a folder that can be written with --out.")


def _is_unused(root: Path) -> bool:
    """Whether a folder holds nothing, or only what `RunFolder.create` makes before ``run.json`` is there."""
    if not root.is_dir():
        return False
    made = {*_FOLDERS, "lock"}
    return all(
        (path.name in made and not (path.is_dir() and any(path.iterdir()))) or path.name.startswith(".run.json.")
        for path in root.iterdir()
    )


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file whole: after a crash it holds the old bytes or the new ones, durable once this returns.

    Raises:
        DiskFullError: no space; the old file is intact.
        StorageError: it cannot be written.
    """
    write_atomically(path, [data], what=path.name)


def require_free(path: Path) -> None:
    """Refuse a place that a user named for something new: one that is taken, or one inside a run.

    Raises:
        StorageError: it exists and is no empty folder, or a folder above it is a run's.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        found = "is not an empty folder" if path.is_dir() else "exists already"
        raise StorageError(f"{path}: {found}, and nothing is overwritten; choose another")
    run = _run_around(path)
    if run is not None:
        raise StorageError(f"{path}: lies in the run {run}, whose files are its record; choose a place outside of it")


def _run_around(path: Path) -> Path | None:
    return next((folder for folder in path.resolve().parents if (folder / "run.json").is_file()), None)


def protocol_problem(folder: RunFolder) -> str | None:
    """What is wrong with ``protocol.toml``; None when it is as written, or when the run noted no digest of it."""
    noted = folder.facts().get(PROTOCOL_FILE)
    if noted is None:
        return None
    way_out = "Delete it and `kifu resume` writes it again, or restore it from a copy."
    try:
        found = hashlib.sha256(folder.protocol.read_bytes()).hexdigest()
    except FileNotFoundError:
        return f"{folder.protocol}: missing; `kifu resume` writes it again"
    except OSError as cause:
        return f"{folder.protocol}: cannot be read: {cause.strerror}. {way_out}"
    if found == noted:
        return None
    return f"{folder.protocol}: SHA-256 {found[:12]}, run.json promises {str(noted)[:12]}. {way_out}"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, keys in the given order; NaN and infinities are refused."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode())
