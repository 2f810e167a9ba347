"""Beginning with the weights another run ended with: ``policy.from``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kifu.errors import AlteredError, StorageError
from kifu.monitor import RunFolder
from kifu.policy import Weights
from kifu.records.weights import WeightStore


def start_digest(source: Path) -> str:
    """Digest of the last version a run published; the protocol names the weights by it, never by the path.

    Raises:
        StorageError: no run there, or it published nothing.
    """
    with _published(source) as store:
        return store.versions[-1].digest


def start_weights(source: Path, *, digest: str) -> Weights:
    """The version with a digest, as version 0 of a new run.

    Raises:
        StorageError: no run there, or it published nothing.
        AlteredError: it never published such a version.
    """
    with _published(source) as store:
        named = [item.version for item in store.versions if item.digest == digest]
        if not named:
            raise AlteredError(
                f"policy.from: {source} has no version {digest[:12]}, which this run began with; it was made "
                "anew since. Restore it, or start a new run."
            )
        found = store.get(named[-1])
    return Weights(version=0, tensors=found.tensors, bfloat16=frozenset(found.bfloat16), is_adapter=found.is_adapter)


@contextmanager
def _published(source: Path) -> Iterator[WeightStore]:
    store = WeightStore(RunFolder.open(source).weights, read_only=True)
    try:
        if not store.versions:
            raise StorageError(f"policy.from: {source} has published no weights; train it first")
        yield store
    finally:
        store.close()
