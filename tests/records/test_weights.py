"""Versions come back bit for bit, from files an outsider can open."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zstandard

from kifu.errors import AlteredError, StorageError
from kifu.records import WeightStore, weights_digest

Arrays = dict[str, npt.NDArray[Any]]


def version(number: int) -> Arrays:
    """A matrix, a bfloat16 vector, a scalar and an empty tensor, drifting a little."""
    generator = np.random.default_rng(number)
    return {
        "z": (np.arange(6, dtype=np.float32).reshape(2, 3) + number),
        "b": np.arange(1000, dtype=np.uint16) + np.uint16(number),
        "a": np.asarray(generator.normal(), dtype=np.float64),
        "e": np.zeros((0, 4), dtype=np.float32),
        "t": np.arange(12, dtype=np.float32).reshape(3, 4).T * number,
    }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WeightStore]:
    """Three versions."""
    store = WeightStore(tmp_path)
    for number in range(3):
        store.put(number, version(number), bfloat16={"b"})
    yield store
    store.close()


def equal(one: Arrays, other: Any) -> bool:  # noqa: ANN401 - a mapping of arrays
    return sorted(one) == sorted(other) and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and (one[name] == other[name]).all()
        for name in one
    )


def test_every_version_comes_back_in_any_order(store: WeightStore, tmp_path: Path) -> None:
    fresh = WeightStore(tmp_path, read_only=True)
    for opened in (store, fresh):
        for number in (2, 0, 1, 1, 2):
            found = opened.get(number)
            assert equal(version(number), found.tensors)
            assert found.bfloat16 == {"b"}
            assert not found.tensors["z"].flags.writeable


def test_an_outsider_rebuilds_a_version_with_zstandard_and_xor(store: WeightStore, tmp_path: Path) -> None:
    lines = [json.loads(text) for text in (tmp_path / "versions.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["base"]) for line in lines] == [("full", None), ("xor-zstd", 0), ("xor-zstd", 1)]
    raw = np.zeros(lines[0]["raw_bytes"], np.uint8)
    for line in lines:
        data = (tmp_path / line["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == line["sha256"]
        raw ^= np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.uint8)
    found, at = hashlib.sha256(), 0
    for name, dtype, shape in lines[0]["tensors"]:
        size = int(np.prod(shape)) * {"bfloat16": 2, "float32": 4, "float64": 8}[dtype]
        found.update(f"{name}|{dtype}|{','.join(map(str, shape))}|".encode() + raw[at : at + size].tobytes())
        at += size
    assert at == raw.size
    assert found.hexdigest() == lines[2]["weights"] == weights_digest(version(2), {"b"})


def test_a_small_change_makes_a_small_file(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    first = {"w": generator.integers(0, 2**16, 200_000, dtype=np.uint16)}
    second = {"w": first["w"].copy()}
    second["w"][::100] += 1
    store = WeightStore(tmp_path)
    store.put(0, first, bfloat16={"w"})
    store.put(1, second, bfloat16={"w"})
    full, delta = ((tmp_path / entry.file).stat().st_size for entry in store.versions)
    assert delta < full / 10


def test_adapters_are_kept_whole_beside_a_full_version(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    store.put(0, version(0), bfloat16={"b"})
    for number in (1, 2):
        store.put(number, {"lora": np.full(4, number, np.float32)}, is_adapter=True)
    store.put(3, {"lora": np.full(4, 3, np.float32)})
    assert [entry.kind for entry in store.versions] == ["full", "adapter", "adapter", "full"]
    assert [store.get(number).is_adapter for number in range(4)] == [False, True, True, False]
    assert store.get(2).tensors["lora"].tolist() == [2.0] * 4


def test_other_names_or_shapes_start_a_full_version(store: WeightStore) -> None:
    store.put(3, {"z": np.zeros(3, np.float32)})
    store.put(4, {"z": np.ones(3, np.float32)})
    assert [entry.kind for entry in store.versions[3:]] == ["full", "xor-zstd"]
    assert store.get(4).tensors["z"].tolist() == [1.0] * 3


def test_a_version_is_published_once(store: WeightStore, tmp_path: Path) -> None:
    head = store.head
    store.put(1, version(1), bfloat16={"b"})
    assert store.head == head
    with pytest.raises(StorageError, match=r"version 1 is kept with digest .* did not come out the same"):
        store.put(1, version(2), bfloat16={"b"})
    reader = WeightStore(tmp_path, read_only=True)
    with pytest.raises(StorageError, match="opened for reading"):
        reader.put(9, version(9))
    with pytest.raises(StorageError, match="version 7 is not kept; 3 are, the last one is 2"):
        store.get(7)


def test_a_read_only_store_writes_no_file(store: WeightStore, tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(StorageError, match="opened for reading"):
        WeightStore(tmp_path, read_only=True).put(3, version(3), bfloat16={"b"})
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_writer_goes_on_after_reopening(store: WeightStore, tmp_path: Path) -> None:
    store.close()
    again = WeightStore(tmp_path)
    again.put(3, version(3), bfloat16={"b"})
    assert equal(version(3), WeightStore(tmp_path, read_only=True).get(3).tensors)


def test_an_altered_file_is_named(store: WeightStore, tmp_path: Path) -> None:
    path = tmp_path / store.versions[1].file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    fresh = WeightStore(tmp_path, read_only=True)
    assert fresh.altered() == [path.name]
    with pytest.raises(AlteredError, match=str(tmp_path)):
        fresh.get(2)
    path.unlink()
    assert fresh.altered() == [path.name]
    with pytest.raises(AlteredError, match=path.name):
        WeightStore(tmp_path, read_only=True).get(1)


def test_bfloat16_needs_bit_patterns() -> None:
    with pytest.raises(StorageError, match="`w` is float32, expected the uint16 bit patterns"):
        weights_digest({"w": np.zeros(1, np.float32)}, {"w"})
    with pytest.raises(StorageError, match=r"no tensors called \['v'\]"):
        weights_digest({}, {"v"})
