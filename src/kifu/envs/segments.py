"""Endless interactions: an episode is a segment, and the next one starts from the state the last was cut in."""

import json
from dataclasses import replace

from kifu.envs.spec import Snapshot, Task
from kifu.errors import UsageError
from kifu.records import Json


def next_segment(task: Task, state: Snapshot, *, index: int | None = None) -> Task:
    """The task that goes on where a segment was cut.

    ``reset`` of a continuing environment finds the state in ``task.data["carried"]``, a snapshot of its own, and shows
    what is seen there.

    Args:
        task: of the segment that was cut, or of the first one.
        state: the snapshot taken at the cut.
        index: of the new segment; None counts on from ``task``.
    """
    if isinstance(state, bytes):
        raise UsageError(f"task `{task.id}`: found a snapshot of bytes, a segment is carried as JSON")
    last = task.data.get("segment", 0)
    following = (last if isinstance(last, int) else 0) + 1 if index is None else index
    data: dict[str, Json] = {**task.data, "carried": state, "segment": following}
    return replace(task, data=data)


def read_state(data: bytes) -> Json:
    """A JSON state as it was kept."""
    found: Json = json.loads(data)
    return found
