"""Carrying endless interactions from one step of the run to the next: each place of a step goes on where it was cut."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from kifu.envs.segments import read_state
from kifu.records import Json, Purpose, Segment, Trajectory
from kifu.records.blobs import BlobStore

_Place: TypeAlias = tuple[int, int]
"""Step and group."""


class Carried(NamedTuple):
    """What a rollout begins with."""

    segment: Segment
    state: Json
    """None for a first segment."""


class Segments:
    """The last state at every place, by step.

    Args:
        states: where states are kept, by digest.
        recorded: what the record already holds of the steps a resumed run goes on from.
    """

    def __init__(self, states: BlobStore, recorded: Iterable[Trajectory] = ()) -> None:
        self._states = states
        self._recorded = {
            (item.key.step, item.key.group): item for item in recorded if item.key.purpose is Purpose.TRAIN
        }
        self._ends: dict[_Place, asyncio.Future[Trajectory]] = {}

    async def following(self, step: int, group: int, *, begins: bool) -> Carried:
        """The segment at a place of ``step``, once the one before it is over.

        A first one where nothing was cut before: at the beginning, after a failure of the infrastructure, after an end.

        Args:
            step: step of the run.
            group: place in the step.
            begins: whether no step of this kind came before.
        """
        if begins:
            return Carried(Segment(index=0), None)
        place = (step - 1, group)
        last = self._recorded.pop(place, None) or await self._end(place)
        self._ends.pop(place, None)
        digest = last.environment.final_digest
        if last.segment is None or digest is None or not last.outcome.truncated or not self._states.has(digest):
            return Carried(Segment(index=0), None)
        segment = Segment(index=last.segment.index + 1, carried_state=digest)
        return Carried(segment, read_state(self._states.get(digest)))

    def ended(self, trajectory: Trajectory) -> None:
        """A segment is over and durable."""
        end = self._end((trajectory.key.step, trajectory.key.group))
        if not end.done():
            end.set_result(trajectory)

    def _end(self, place: _Place) -> "asyncio.Future[Trajectory]":
        if place not in self._ends:
            self._ends[place] = asyncio.get_running_loop().create_future()
        return self._ends[place]
