"""Segments of an endless interaction: each step goes on where the last was cut, also in another process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kifu.records import BlobStore, RunReader, StopReason, Trajectory
from kifu.records.crash import VARIABLE
from kifu.records.rows import content_digest
from kifu.training.experiment.reading import load_experiment
from kifu.training.inspection.replay import replay_run
from kifu.training.run import resume, train

RECIPE = Path(__file__).parents[3] / "recipes" / "loop_room.toml"
STEPS = 5
SMALL = (
    f"update.steps={STEPS}",
    "update.prompts_per_step=3",
    "environment.collector_limits.turns=6",
    "record.checkpoint_every=2",
    "evaluation.tasks=1",
)
CHILD = f"""
from pathlib import Path
from kifu.training.experiment.reading import load_experiment
from kifu.training.run import train
loaded = load_experiment(Path({str(RECIPE)!r}), overrides={list(SMALL)!r})
train(loaded, out=Path(__import__("sys").argv[1]), quiet=True)
"""


def _training(root: Path) -> dict[tuple[int, int], Trajectory]:
    records = RunReader(root).trajectories()
    return {(item.key.step, item.key.group): item for item in records if item.key.purpose.value == "train"}


def _digests(root: Path) -> list[str]:
    items = sorted(RunReader(root).trajectories(), key=lambda item: item.id)
    return [content_digest(item) for item in items]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of three places, cut after six turns."""
    root = tmp_path_factory.mktemp("runs") / "straight"
    train(load_experiment(RECIPE, overrides=SMALL), out=root, seed=0, quiet=True)
    return root


def test_every_place_goes_on_from_the_state_and_the_room_it_was_cut_in(run: Path) -> None:
    """Index counts up, digests join, and the first thing seen is the last thing seen before."""
    found = _training(run)
    assert len(found) == 3 * STEPS
    for (step, group), item in found.items():
        assert item.segment is not None
        assert item.segment.index == step
        assert item.outcome.reason is StopReason.TURN_LIMIT
        if step == 0:
            assert item.segment.carried_state is None
            continue
        last = found[step - 1, group]
        assert item.segment.carried_state is not None
        assert item.segment.carried_state == last.environment.final_digest == item.environment.initial_digest
        assert item.tape_ids(0)[0] == last.tape_ids(0)[-1]
        assert item.task == last.task
        assert BlobStore(run / "blobs").has(item.segment.carried_state)


def test_steps_collected_ahead_wait_for_the_segment_before_them(tmp_path: Path) -> None:
    """With an asynchronous queue the same places are joined."""
    root = tmp_path / "ahead"
    train(load_experiment(RECIPE, overrides=[*SMALL, "update.max_age=2"]), out=root, seed=0, quiet=True)
    found = _training(root)
    joined = [(found[step, group], found[step - 1, group]) for step in range(1, STEPS) for group in range(3)]
    assert all(item.environment.initial_digest == last.environment.final_digest for item, last in joined)


def test_evaluation_begins_first_segments(run: Path) -> None:
    """It measures the same starts for every version."""
    attempts = [item for item in RunReader(run).trajectories() if item.key.purpose.value == "evaluation"]
    assert attempts
    assert all(item.segment is None for item in attempts)


def test_carried_segments_replay_from_the_kept_state(run: Path) -> None:
    """Every observation, reward and digest again."""
    found = replay_run(run)
    assert all(replayed.why_not is None for replayed in found.values())
    assert not [line for replayed in found.values() for line in replayed.differences]


def test_a_segment_whose_state_is_gone_is_said_not_to_replay(run: Path, tmp_path: Path) -> None:
    """Named by its digest, not compared with another start."""
    item = _training(run)[1, 0]
    assert item.segment is not None
    assert item.segment.carried_state is not None
    path = BlobStore(run / "blobs").path(item.segment.carried_state)
    kept = path.read_bytes()
    path.unlink()
    try:
        why = replay_run(run, item.id)[item.id].why_not
    finally:
        path.write_bytes(kept)
    assert why is not None
    assert item.segment.carried_state[:12] in why


@pytest.mark.parametrize("point", ["plan.after_line#3", "part.after_rename#4", "wal.after_fsync#9"])
def test_a_killed_run_goes_on_with_the_same_segments(run: Path, tmp_path: Path, point: str) -> None:
    """Killed in another process inside and between steps; the ordered content digests equal those of a straight run."""
    root = tmp_path / "killed"
    environment = {**os.environ, VARIABLE: point}
    child = subprocess.run([sys.executable, "-c", CHILD, str(root)], env=environment, check=False)
    assert child.returncode == -signal.SIGKILL
    resume(root, quiet=True)
    assert _digests(root) == _digests(run)
