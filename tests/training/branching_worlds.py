"""Key and door that can only be led back, or not be put back at all."""

from typing import ClassVar

from kifu.envs import Capabilities, SnapshotKind
from kifu.envs.suites.key_door import KeyDoor
from kifu.records import Json


class ReplayedKeyDoor(KeyDoor):
    """Takes no snapshot; the hidden state has a name."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.REPLAY)

    def snapshot(self) -> Json:
        """None."""
        raise NotImplementedError

    def state_digest(self) -> str:
        """The hidden state, spelled out."""
        return f"{self.state}"


class UnkeptKeyDoor(KeyDoor):
    """Nothing brings it back."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.NONE)
