"""A run that is looked at and not gone on with: its experiment, its kept versions, an engine at any of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kifu.engines import build_engine
from kifu.errors import StorageError, UsageError
from kifu.monitor import RunFolder, begun
from kifu.policy import Engine, Weights
from kifu.records import WeightStore
from kifu.training.experiment.prepare import Prepared
from kifu.training.experiment.reading import Loaded
from kifu.training.experiment.stages import Stage
from kifu.training.run import reopen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedRun:
    """What evaluation, audit, replay and export share. Nothing of the run is written."""

    folder: RunFolder
    prepared: Prepared
    seed: int
    """Of the run."""
    weights: WeightStore

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In order."""
        return self.prepared.stages

    def version(self, which: str | int) -> int:
        """The number of a kept version: itself, ``first`` or ``last``.

        Raises:
            UsageError: neither a number nor one of the two words.
            StorageError: that version is not kept.
        """
        kept = [item.version for item in self.weights.versions]
        if not kept:
            raise StorageError(
                f"{self.folder.weights}: the run has published no weights; `kifu resume` goes on with it"
            )
        if which in ("first", "last"):
            return kept[0] if which == "first" else kept[-1]
        if not str(which).isdecimal():
            raise UsageError(
                f"checkpoint: found {which!r}, expected a number from {kept[0]} to {kept[-1]}, first or last"
            )
        if int(which) not in kept:
            raise StorageError(
                f"{self.folder.weights}: version {which} is not kept; {len(kept)} are, from {kept[0]} to {kept[-1]}"
            )
        return int(which)

    def stored(self, version: int) -> Weights:
        """A kept version.

        Raises:
            StorageError: it is not kept.
            AlteredError: its bytes do not give its digest.
        """
        found = self.weights.get(version)
        return Weights(
            version=version,
            tensors=found.tensors,
            bfloat16=frozenset(found.bfloat16),
            is_adapter=found.is_adapter,
        )

    def engine(self, version: int) -> Engine:
        """The run's engine with a kept version loaded."""
        name = self.prepared.experiment.policy.engine
        stage = self.prepared.stages[-1]
        return build_engine(name, self.prepared.engine_spec(stage, seed=self.seed, initial=self.stored(version)))


@contextmanager
def opened(root: Path, *, experiment: Loaded | None = None, same_code: bool = False) -> Iterator[OpenedRun]:
    """Open a run to look at it; another process may be writing it.

    Args:
        root: the run folder.
        experiment: the experiment again, for runs started from Python with objects a file cannot name.
        same_code: whether the environment's files must be those the run began with, as for whoever acts in it.

    Raises:
        StorageError: no run there.
        ExperimentError: the experiment of the folder cannot be rebuilt here.
    """
    folder, prepared = reopen(root, environment=experiment, same_code=same_code)
    weights = WeightStore(folder.weights, read_only=True)
    try:
        yield OpenedRun(folder=folder, prepared=prepared, seed=begun(folder).seed, weights=weights)
    finally:
        weights.close()
