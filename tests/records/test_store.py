"""One writer, nothing lost, nothing twice."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.errors import AlteredError, LockedError, RecordError
from kifu.records import RunReader, RunStore, Trajectory, content_digest
from kifu.records.parts import part_name
from kifu.records.store import writer_of
from kifu.records.wal import read_wal, wal_files

Make = Callable[..., Trajectory]

HOLD = "import sys; from kifu.records import RunStore; s = RunStore(sys.argv[1]); print('held', flush=True); input()"


def ids(folder: Path) -> list[str]:
    return [trajectory.id for trajectory in RunReader(folder).trajectories()]


def test_a_part_holds_the_step_in_the_order_of_keys_whatever_the_order_of_completion(
    make: Make, tmp_path: Path
) -> None:
    records = [make(group=group, member=member) for group in range(2) for member in range(2)]
    with RunStore(tmp_path) as store:
        for record in (records[3], records[0], records[2], records[1]):
            store.accept(record).result()
        assert [record.id for record in store.pending] == [record.id for record in records]
        part = store.seal(0)
        assert part is not None
        assert (part.part, part.rows, store.pending) == (part_name(0), 4, ())
    assert ids(tmp_path) == [record.id for record in records]


def test_trajectories_of_later_steps_stay_in_the_log(make: Make, tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        for step in (1, 0, 2):
            store.accept(make(step=step)).result()
        store.seal(0)
        (log,) = wal_files(tmp_path / "wal")
        assert sorted(frame.body["key"]["step"] for frame in read_wal(log).frames) == [1, 2]
    with RunStore(tmp_path) as store:
        assert [record.key.step for record in store.pending] == [1, 2]
        store.seal(2)
    assert [record.key.step for record in RunReader(tmp_path).trajectories()] == [0, 1, 2]


def test_what_was_accepted_is_there_after_reopening_and_only_once(make: Make, tmp_path: Path) -> None:
    record = make()
    with RunStore(tmp_path) as store:
        store.accept(record).result()
    with RunStore(tmp_path) as store:
        assert store.digest(record.id) == content_digest(record)
        store.accept(record).result()
        store.seal(0)
        store.accept(record).result()
        assert store.seal(0) is None
    assert ids(tmp_path) == [record.id]


def test_another_content_under_a_known_id_is_refused(make: Make, tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.accept(make()).result()
        with pytest.raises(RecordError, match="needs its own attempt number"):
            store.accept(make(score=0.0))


def test_a_second_process_is_told_who_owns_the_run(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(LockedError, match=f"process {owner.pid} is writing this run"):
        RunStore(tmp_path)
    owner.communicate("\n")
    RunStore(tmp_path).close()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_notes_of_an_unfinished_rollout_survive_seals_and_reopening(make: Make, tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.note("train/x", {"call": 1}).result()
        store.note("train/x", {"call": 1}).result()
        store.accept(make()).result()
        store.seal(0)
    with RunStore(tmp_path) as store:
        assert store.notes("train/x") == ({"call": 1}, {"call": 1})


def test_notes_end_with_the_acceptance_of_their_trajectory(make: Make, tmp_path: Path) -> None:
    record = make()
    with RunStore(tmp_path) as store:
        store.note(record.id, 1).result()
        store.accept(record).result()
    with RunStore(tmp_path) as store:
        assert store.notes(record.id) == ()


def test_an_unlisted_part_whose_rows_are_gone_means_the_manifest_was_cut(make: Make, tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.accept(make()).result()
        store.seal(0)
        head = store.head
    (tmp_path / "records" / "manifest.jsonl").write_bytes(b"")
    with pytest.raises(AlteredError, match="the manifest was cut or rewritten"):
        RunStore(tmp_path)
    with pytest.raises(AlteredError, match="lines were cut off or rewritten"):
        RunStore(tmp_path, expected_head=head)
    assert (tmp_path / "records" / part_name(0)).exists()


def test_a_writer_refuses_a_run_with_an_altered_part(make: Make, tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.accept(make()).result()
        store.seal(0)
    path = tmp_path / "records" / part_name(0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(AlteredError, match=part_name(0)):
        RunStore(tmp_path)
    path.write_bytes(
        bytes(data[: len(data) // 2]) + bytes([data[len(data) // 2] ^ 1]) + bytes(data[len(data) // 2 + 1 :])
    )
    RunStore(tmp_path).close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the store has a thread
def test_a_forked_child_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    """The child outlives the store, as one that an environment leaves behind; while the store is open, it is locked."""
    store = RunStore(tmp_path)
    hold, let_go = os.pipe()
    begun, begins = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(let_go)
        os.write(begins, b"!")
        os.read(hold, 1)  # until the parent is done
        os._exit(0)
    os.close(begins)
    try:
        os.read(begun, 1)
        assert writer_of(tmp_path) == str(os.getpid())
        store.close()
        assert writer_of(tmp_path) is None
        RunStore(tmp_path).close()
    finally:
        os.close(let_go)
        os.close(hold)
        os.close(begun)
        os.waitpid(child, 0)
