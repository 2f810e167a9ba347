"""Readers of a run that is being written see every record once, and trust no changed byte."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.errors import AlteredError, FormatError, StorageError
from kifu.records import ChainedLog, RunReader, RunStore, Trajectory, WeightStore, audit_run
from kifu.records.parts import part_name

Make = Callable[..., Trajectory]


@pytest.fixture
def run(make: Make, tmp_path: Path) -> Path:
    """Two sealed steps and one accepted trajectory."""
    with RunStore(tmp_path) as store:
        for step in range(2):
            store.accept(make(step=step)).result()
            store.seal(step)
        store.accept(make(step=2)).result()
    return tmp_path


def test_parts_come_first_and_the_live_log_last(run: Path) -> None:
    assert [record.key.step for record in RunReader(run).trajectories()] == [0, 1, 2]
    assert [record.key.step for record in RunReader(run).trajectories(live=False)] == [0, 1]


def test_one_record_is_found_by_its_id(run: Path, make: Make) -> None:
    assert RunReader(run).find(make(step=1).id).key.step == 1
    assert RunReader(run).find(make(step=2).id).key.step == 2
    with pytest.raises(StorageError, match="no record `train/none`"):
        RunReader(run).find("train/none")


def test_every_kind_of_flip_in_a_part_is_found_before_it_is_parsed(run: Path) -> None:
    path = run / "records" / part_name(0)
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        reader = RunReader(run)
        with pytest.raises(AlteredError, match=f"{part_name(0)}.*SHA-256"):
            reader.rows(reader.parts[0])


def test_a_missing_part_is_named(run: Path) -> None:
    (run / "records" / part_name(1)).unlink()
    with pytest.raises(AlteredError, match=f"{part_name(1)}.*missing"):
        list(RunReader(run).trajectories())


def test_swapped_parts_are_named(run: Path) -> None:
    first, second = (run / "records" / part_name(number) for number in range(2))
    swapped = first.read_bytes(), second.read_bytes()
    second.write_bytes(swapped[0])
    first.write_bytes(swapped[1])
    with pytest.raises(AlteredError, match=part_name(0)):
        list(RunReader(run).trajectories())


def test_a_folder_without_records_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="expected a run folder"):
        RunReader(tmp_path)


def test_a_reader_beside_the_writer_never_misses_or_repeats_an_accepted_record(make: Make, tmp_path: Path) -> None:
    accepted: list[str] = []
    failures: list[str] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            promised = list(accepted)
            found = [record.id for record in RunReader(tmp_path).trajectories()]
            if len(found) != len(set(found)) or not set(promised) <= set(found):
                failures.append(f"promised {promised}, found {found}")

    with RunStore(tmp_path) as store:
        thread = threading.Thread(target=read)
        thread.start()
        for step in range(12):
            for member in range(3):
                record = make(step=step, member=member)
                store.accept(record).result()
                accepted.append(record.id)
            store.seal(step if step % 3 else step - 1)
        is_over.set()
        thread.join()
    assert failures == []


def test_a_run_of_a_newer_format_is_refused_by_every_reader_and_left_alone(run: Path) -> None:
    path = run / "records" / "manifest.jsonl"
    log = ChainedLog(path, name="manifest")
    log.append({"format": 2, "chunks": []})
    log.close()
    before = {item: item.read_bytes() for item in run.rglob("*") if item.is_file() and item.name != "lock"}
    with pytest.raises(FormatError, match=r"manifest\.jsonl, line 3: record format 2, this kifu reads up to 1"):
        RunReader(run)
    with pytest.raises(FormatError, match="newer kifu"):
        RunStore(run)
    (problem,) = audit_run(run).problems
    assert (problem.part, "newer kifu" in problem.what) == ("records/manifest.jsonl", True)
    assert before == {item: item.read_bytes() for item in run.rglob("*") if item.is_file() and item.name != "lock"}


def test_weights_of_a_newer_format_are_refused(tmp_path: Path) -> None:
    log = ChainedLog(tmp_path / "versions.jsonl", name="versions")
    log.append({"format": 2})
    log.close()
    with pytest.raises(FormatError, match=r"versions\.jsonl, line 1: record format 2"):
        WeightStore(tmp_path, read_only=True)
