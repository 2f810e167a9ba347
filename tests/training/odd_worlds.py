"""Key and door with rewards and failures that a test can foresee."""

from dataclasses import replace

from kifu.envs import Task
from kifu.envs.suites.key_door import KeyDoor
from kifu.records import Verdict


class Stingy(KeyDoor):
    """Never pays."""

    def verify(self) -> Verdict:
        """Nobody succeeds."""
        return replace(super().verify(), success=False)


class Generous(KeyDoor):
    """Always pays."""

    def verify(self) -> Verdict:
        """Everybody succeeds."""
        return replace(super().verify(), success=True)


class Parity(KeyDoor):
    """Pays for an even number of steps, so that attempts at random differ."""

    def verify(self) -> Verdict:
        """By the budget that is left."""
        return replace(super().verify(), success=self.state.budget % 2 == 0)


class Early(KeyDoor):
    """Pays for an even number of steps in the first two tasks, and never afterwards."""

    def reset(self, task: Task, seed: int) -> str:
        """Remember the task."""
        self.seed = seed
        return super().reset(task, seed)

    def verify(self) -> Verdict:
        """By the budget that is left."""
        return replace(super().verify(), success=self.seed < 2 and self.state.budget % 2 == 0)


class Brittle(KeyDoor):
    """Every other task cannot be set up."""

    def reset(self, task: Task, seed: int) -> str:
        """Break on odd seeds."""
        if seed % 2 and task.split == "train":
            raise RuntimeError("the room is on fire")
        return super().reset(task, seed)


class Burnt(KeyDoor):
    """No task can be set up."""

    def reset(self, task: Task, seed: int) -> str:
        """Break always."""
        raise RuntimeError("the house is gone")
