"""Fills a small file system under a run, inside a user and mount namespace of its own; prints one JSON line."""

import json
import sys
from pathlib import Path

import numpy as np

from kifu.errors import DiskFullError
from kifu.records import (
    BlobStore,
    EnvironmentRef,
    Outcome,
    PlanLine,
    PlanLog,
    Provenance,
    RolloutKey,
    RunReader,
    RunStore,
    StopReason,
    Tape,
    TaskRef,
    Trajectory,
    Turn,
    WeightStore,
    read_plan,
)


def record(member: int, *, text: str = "") -> Trajectory:
    """A record as large as its text."""
    return Trajectory(
        key=RolloutKey(seed=0, step=0, group=0, member=member),
        task=TaskRef(id="t"),
        environment=EnvironmentRef(id="e", version="1", seed=0),
        provenance=Provenance(),
        tapes=(Tape(spans=()),),
        turns=(Turn(index=0, text=text),) if text else (),
        outcome=Outcome(reason=StopReason.CANCELLED),
    )


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Use all space up, then give ``leave`` bytes back."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as handle:
        try:
            while True:
                handle.write(bytes(4096))
        except OSError:
            pass
        handle.truncate(max(0, handle.tell() - leave) // 4096 * 4096)
    return ballast


def refused(action: object) -> str:
    """The message of the full disk."""
    assert callable(action)
    try:
        action()
    except DiskFullError as error:
        return str(error)
    return "nothing was raised"


def noise(size: int) -> str:
    """Text that does not compress."""
    return np.random.default_rng(0).bytes(size // 2).hex()


def main(folder: Path) -> dict[str, object]:
    """Let the disk run full under each kind of file in turn."""
    found: dict[str, object] = {}
    store = RunStore(folder)
    store.accept(record(0, text=noise(200_000))).result()
    ballast = fill(folder)
    found["log"] = refused(lambda: store.accept(record(1, text=noise(100_000))).result())
    ballast.unlink()
    for pages in range(100):  # with every page more, the next file of the sealing finds room
        ballast = fill(folder, leave=4096 * pages)
        message = refused(lambda: store.seal(0))
        ballast.unlink()
        kind = "manifest" if "manifest" in message else "part" if "a part" in message else "log"
        found[f"{kind} while sealing"] = message
        if kind == "manifest":
            break
    found["pending"] = [trajectory.id for trajectory in store.pending]
    store.accept(record(1)).result()
    part = store.seal(0)
    found["sealed"] = 0 if part is None else part.rows
    found["left over"] = sorted(path.name for path in (folder / "records").iterdir())
    plan, weights, blobs = PlanLog(folder), WeightStore(folder / "weights"), BlobStore(folder / "blobs")
    weights.put(0, {"w": np.zeros(10, np.float32)})
    plan.append(PlanLine(step=0, version=0, micro_batches=(), rows=()))
    ballast = fill(folder)
    noisy = np.frombuffer(np.random.default_rng(0).bytes(400_000), np.uint32)
    found["weights"] = refused(lambda: weights.put(1, {"w": noisy}))
    found["blob"] = refused(lambda: blobs.put(noisy.tobytes()))
    long = PlanLine(step=1, version=0, micro_batches=(), rows=(), denominators={noise(100_000): 1.0})
    found["plan"] = refused(lambda: plan.append(long))
    ballast.unlink()
    weights.put(1, {"w": noisy})
    plan.append(PlanLine(step=1, version=0, micro_batches=(), rows=()))
    store.close()
    found["records"] = [trajectory.id[-7:] for trajectory in RunReader(folder).trajectories()]
    found["steps"] = [line.step for line in read_plan(folder)]
    found["versions"] = bool((weights.get(1).tensors["w"] == noisy).all())
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
