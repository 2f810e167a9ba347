"""Where the seconds go: wall and CPU time of the process, and of each stage of a step."""

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Stage(StrEnum):
    """What a rollout or a step spends its time on."""

    GENERATION = "generation"
    TOOLS = "tools"
    ENVIRONMENT = "environment"
    """Reset, verification, snapshots."""
    WAITING = "waiting"
    """For a free slot, for others, for a queue."""
    TRAINING = "training"


def process_cpu_s() -> float:
    """CPU seconds of this process, all threads, and of its finished children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Stopwatch:
    """Wall and CPU seconds since it was made.

    Args:
        wall: a monotonic clock in seconds.
        cpu: CPU seconds of the process so far.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.perf_counter, cpu: Callable[[], float] = process_cpu_s
    ) -> None:
        self._wall, self._cpu = wall, cpu
        self._wall_start, self._cpu_start = wall(), cpu()

    @property
    def seconds(self) -> float:
        """Wall seconds so far."""
        return self._wall() - self._wall_start

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds so far, finished children included."""
        return self._cpu() - self._cpu_start


class Timings:
    """Seconds by stage. Rollouts overlap, so the wall seconds of the stages may add up to more than the clock shows.

    Safe to use from several threads.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.perf_counter, cpu: Callable[[], float] = process_cpu_s
    ) -> None:
        self._clock, self._cpu_clock = wall, cpu
        self._lock = threading.Lock()
        self._wall_s = dict.fromkeys(Stage, 0.0)
        self._cpu_s = dict.fromkeys(Stage, 0.0)

    def add(self, stage: Stage, *, wall_s: float, cpu_s: float = 0.0) -> None:
        """Count seconds that were measured elsewhere."""
        with self._lock:
            self._wall_s[stage] += wall_s
            self._cpu_s[stage] += cpu_s

    @contextmanager
    def overlapping(self, stage: Stage) -> Iterator[None]:
        """Count the wall seconds of a block that others run beside; its CPU seconds cannot be told apart."""
        start = self._clock()
        try:
            yield
        finally:
            self.add(stage, wall_s=self._clock() - start)

    @contextmanager
    def exclusive(self, stage: Stage) -> Iterator[None]:
        """Count wall and CPU seconds of a block that has the process for itself."""
        start, cpu_start = self._clock(), self._cpu_clock()
        try:
            yield
        finally:
            self.add(stage, wall_s=self._clock() - start, cpu_s=self._cpu_clock() - cpu_start)

    def wall_s(self) -> dict[Stage, float]:
        """Wall seconds of every stage."""
        with self._lock:
            return dict(self._wall_s)

    def cpu_s(self) -> dict[Stage, float]:
        """CPU seconds of every stage, where blocks were exclusive."""
        with self._lock:
            return dict(self._cpu_s)

    def share(self) -> dict[Stage, float]:
        """Fraction of all counted wall seconds per stage; zeros while nothing was counted."""
        seconds = self.wall_s()
        total = sum(seconds.values())
        return {stage: spent / total if total > 0 else 0.0 for stage, spent in seconds.items()}

    def metrics(self) -> dict[str, float]:
        """``time/<stage>_s`` and ``time/<stage>_share`` for the metrics file."""
        share = self.share()
        found = {f"time/{stage}_s": spent for stage, spent in self.wall_s().items()}
        return found | {f"time/{stage}_share": share[stage] for stage in Stage}

    def reset(self) -> None:
        """Start counting anew, e.g. at the start of a step."""
        with self._lock:
            self._wall_s = dict.fromkeys(Stage, 0.0)
            self._cpu_s = dict.fromkeys(Stage, 0.0)
