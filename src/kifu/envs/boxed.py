"""What environments with a box share: one back-end for agents, one for judges, and a box's files as a snapshot."""

import atexit
import base64
import os
import threading
from collections.abc import Mapping

from kifu.envs.contract import Environment
from kifu.errors import UsageError
from kifu.records import Json
from kifu.sandbox import Entry, Kind, Limits, NsBackend, Policy, Sandbox, Tree, Wanted, open_sandbox
from kifu.verify import Workshop

JUDGE_SLOT = 1
"""User of the judges' boxes; agents have slot 0."""
_FILES = Wanted(patterns=("**",), max_files=5_000, max_bytes=16 << 20)
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


class BoxedEnvironment(Environment):
    """Base class: a subclass calls `open_box` in ``reset``. The state of its box is the files in it, nothing else."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None
        self._base = Tree()

    def open_box(self, policy: Policy) -> Sandbox:
        """A box with the policy's files as they are at the start."""
        if self._sandbox is not None and self._sandbox.policy == policy:
            self._sandbox.reset()
        else:
            BoxedEnvironment.close(self)
            self._sandbox = open_sandbox(policy, log=self.effect_log)
        self._base = policy.base
        return self._sandbox

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
