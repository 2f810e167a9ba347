"""What environments with a box share: one back-end for agents, one for judges, turns, a box's files as a snapshot."""

import atexit
import base64
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from kifu.envs.contract import Environment
from kifu.envs.spec import Reply, Snapshot
from kifu.errors import UsageError
from kifu.records import Json, StopReason, Trust
from kifu.sandbox import Entry, Kind, Limits, NsBackend, Policy, Sandbox, Tree, Wanted, open_sandbox
from kifu.verify import Workshop

JUDGE_SLOT = 1
"""User of the judges' boxes; agents have slot 0."""
_FILES = Wanted(patterns=("**",), max_files=20_000, max_bytes=128 << 20)
_judges: dict[int, Workshop] = {}
_lock = threading.Lock()


def judge_workshop() -> Workshop:
    """This process's place for judging single functions, started once and closed at exit."""
    with _lock:
        if os.getpid() not in _judges:
            backend = NsBackend(slot=JUDGE_SLOT)
            _judges[os.getpid()] = Workshop(backend=backend, limits=Limits(wall_s=120.0, cpu_s=20))
            atexit.register(backend.close)
        return _judges[os.getpid()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What has happened in an episode so far. An environment that must remember more adds fields."""

    turns: int = 0
    invalid: int = 0
    stop: str | None = None


class BoxedEnvironment(Environment):
    """Base class: a subclass calls `open_box` in ``reset``. The state of its box is the files in it, nothing else."""

    turns: ClassVar[int] = 1
    """Turns the task allows; the last one ends it."""
    sheet_type: ClassVar[type[Sheet]] = Sheet
    trust: ClassVar[Trust] = Trust.TOOL
    """Of what tools show."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None
        self._base = Tree()
        self._so_far = self.sheet_type()

    @property
    def sheet(self) -> Sheet:
        """What has happened so far."""
        return self._so_far

    def open_box(self, policy: Policy) -> Sandbox:
        """A box with the policy's files as they are at the start."""
        if self._sandbox is not None and self._sandbox.policy == policy:
            self._sandbox.reset()
        else:
            BoxedEnvironment.close(self)
            self._sandbox = open_sandbox(policy, log=self.effect_log)
        self._base = policy.base
        self._so_far = self.sheet_type()
        return self._sandbox

    def turn(
        self, text: str, *, stop: StopReason | None = None, error: str | None = None, exit_status: int | None = None
    ) -> Reply:
        """Count a turn and answer it; the last one allowed ends the task.

        Raises:
            UsageError: the episode has ended.
        """
        if self._so_far.stop is not None:
            raise UsageError(f"the episode ended with {self._so_far.stop}; reset before the next call")
        if stop is None and self._so_far.turns + 1 >= self.turns:
            stop = StopReason.TASK_BUDGET
        self.note(turns=self._so_far.turns + 1, stop=stop)
        return Reply(text=text, stop=stop, error=error, exit_status=exit_status, trust=self.trust)

    def note(self, **changes: str | int | None) -> None:
        """Write down on the sheet what has happened."""
        self._so_far = replace(self._so_far, **changes)  # type: ignore[arg-type]  # fields of the sheet

    def invalid(self, error: str) -> Reply:
        """What is no call costs a turn, and the policy is told why."""
        self.note(invalid=self._so_far.invalid + 1)
        return self.turn(f"Error: {error}", error=error)

    def snapshot(self) -> Snapshot:
        """The sheet and the box's files."""
        return {"sheet": asdict(self._so_far), "box": self.changes()}

    def restore(self, ref: Snapshot) -> None:
        """Take both back; reset with the same task first."""
        sheet, box = (ref.get("sheet"), ref.get("box")) if isinstance(ref, dict) else (None, None)
        if not isinstance(sheet, dict) or not isinstance(box, dict) or set(sheet) != set(asdict(self.sheet_type())):
            raise UsageError(f"{type(self).__name__}: found snapshot {ref!r:.100}, expected sheet and box")
        self._so_far = self.sheet_type(**sheet)  # type: ignore[arg-type]  # as asdict gave it
        self.put_changes(box)

    @property
    def box(self) -> Sandbox:
        """The box that reset opened."""
        if self._sandbox is None:
            raise UsageError(f"{type(self).__name__}: reset comes first")
        return self._sandbox

    def close(self) -> None:
        """Give the box up; closing twice is fine."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def changes(self) -> dict[str, Json]:
        """Files that differ from those at the start, and those that are gone."""
        now, before = self.box.export(_FILES).tree, {item.path: item for item in self._base.entries}
        made: dict[str, Json] = {
            item.path: [base64.b64encode(item.data).decode(), item.is_executable]
            for item in now.entries
            if before.get(item.path) != item
        }
        present = set(now.files)
        gone: list[Json] = [path for path, item in before.items() if item.kind is Kind.FILE and path not in present]
        return {"made": made, "gone": gone}

    def put_changes(self, changes: Mapping[str, Json]) -> None:
        """Bring the box from its start to where `changes` was taken."""
        made, gone = changes.get("made"), changes.get("gone")
        if not isinstance(made, dict) or not isinstance(gone, list):
            raise UsageError(f"{type(self).__name__}: found a snapshot of {sorted(changes)}, expected made and gone")
        self.box.reset()
        entries = [Entry(path=str(path), kind=Kind.GONE) for path in gone]
        for path, item in made.items():
            if not isinstance(item, list) or len(item) != 2:
                raise UsageError(f"{type(self).__name__}: snapshot: {path} is {item!r:.60}, expected data and a flag")
            data = base64.b64decode(str(item[0]), validate=True)
            entries.append(Entry(path=path, data=data, is_executable=bool(item[1])))
        if entries:
            self.box.put(Tree(tuple(entries)))
