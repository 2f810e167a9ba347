"""Oracle: files written by the reference package, and its own dequantization."""

import struct
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kifu.errors import ModelError
from kifu.models import open_folder, pull
from kifu.models.blocks import BLOCKS, Block, dequantize
from kifu.models.gguf import open_gguf


class GgufWriter(Protocol):
    def __call__(self, path: Path, changes: dict[str, Any]) -> Path: ...


@pytest.fixture(scope="module")
def small(write_gguf: GgufWriter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", {})


@pytest.mark.parametrize("block", BLOCKS.values(), ids=lambda block: block.name)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_every_bit_pattern_dequantizes_as_the_reference_does(block: Block, data: st.DataObject) -> None:
    """Random bytes are valid blocks; infinite and not-a-number scales are among them."""
    raw = data.draw(st.binary(min_size=block.layout.itemsize * 3, max_size=block.layout.itemsize * 3))
    with np.errstate(all="ignore"):
        expected = (
            gguf.dequantize(np.frombuffer(raw, np.uint8), gguf.GGMLQuantizationType[block.name])
            if block.values > 1
            else np.frombuffer(raw, block.layout["x"]).astype(np.float32)
        )
    np.testing.assert_array_equal(dequantize(block.name, raw), expected.reshape(-1))


def test_structure_and_values_equal_the_reference_reader(small: Path) -> None:
    ours, theirs = open_gguf(small), gguf.GGUFReader(small)
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    assert {tensor.kind for tensor in ours.tensors.values()} == {"F32", "F16", "Q4_0", "Q4_1", "Q8_0"}
    for tensor in theirs.tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(ours.read(tensor.name), expected, err_msg=tensor.name)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            found = ours.metadata[key]
            assert (found.tolist() if isinstance(found, np.ndarray) else found) == field.contents(), key


def test_every_truncation_is_refused(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    for size in [0, 1, 23, 24, 100, 1000, 5000, 10_000, 20_000, len(whole) // 2, len(whole) - 1]:
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="truncated"):
            open_gguf(cut)


def _file(tmp_path: Path, body: bytes, num_tensors: int = 0, num_entries: int = 0) -> Path:
    path = tmp_path / "crafted.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_entries) + body)
    return path


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _tensor(name: bytes, axes: tuple[int, ...], kind: int, offset: int) -> bytes:
    return _text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset)


HOSTILE = {
    "a count no file could hold": (b"", 1 << 60, 0, "table of tensors counts"),
    "metadata beyond the end": (b"", 0, 1 << 63, "metadata counts"),
    "a string longer than the file": (struct.pack("<Q", 1 << 62) + b"x" * 40, 0, 1, "a metadata key needs"),
    "a key that is not UTF-8": (_text(b"\xff\xfe") + bytes(40), 0, 1, "not UTF-8"),
    "an unknown value type": (_text(b"k") + struct.pack("<I", 99) + bytes(40), 0, 1, "unknown type 99"),
    "an array longer than the file": (_text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 61) + bytes(40), 0, 1, "counts"),
    "arrays in arrays without end": (_text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50, 0, 1, "depth"),
    "a truth value of 7": (_text(b"k") + struct.pack("<IB", 7, 7) + bytes(40), 0, 1, "truth value"),
    "a key twice": ((_text(b"k") + struct.pack("<IB", 0, 7)) * 2 + bytes(40), 0, 2, "`k` stands twice"),
    "alignment 0": (_text(b"general.alignment") + struct.pack("<II", 4, 0) + bytes(40), 0, 1, "alignment is 0"),
    "alignment 48": (_text(b"general.alignment") + struct.pack("<II", 4, 48) + bytes(40), 0, 1, "alignment is 48"),
    "no axes": (_tensor(b"t", (), 0, 0) + bytes(400), 1, 0, "0 axes"),
    "a thousand axes": (_text(b"t") + struct.pack("<I", 1000) + bytes(400), 1, 0, "1000 axes"),
    "an axis of 0": (_tensor(b"t", (0,), 0, 0) + bytes(400), 1, 0, "does not divide"),
    "half a block": (_tensor(b"t", (16,), 8, 0) + bytes(400), 1, 0, "does not divide"),
    "sizes whose product overflows": (_tensor(b"t", (1 << 62, 1 << 62), 0, 0) + bytes(400), 1, 0, "ends at"),
    "an offset beyond the end": (_tensor(b"t", (4,), 0, 1 << 40) + bytes(400), 1, 0, "ends at"),
    "an offset that is not aligned": (_tensor(b"t", (4,), 0, 4) + bytes(400), 1, 0, "not a multiple"),
    "overlap": (_tensor(b"t", (64,), 0, 0) + _tensor(b"u", (4,), 0, 32) + bytes(900), 2, 0, "overlaps"),
    "a tensor twice": (_tensor(b"t", (4,), 0, 0) + _tensor(b"t", (4,), 0, 32) + bytes(400), 2, 0, "stands twice"),
    "a type that is not read": (_tensor(b"t", (256,), 12, 0) + bytes(400), 1, 0, "type 12. Read are: F32, F16"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "num_tensors", "num_entries", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_structure_is_named(
    tmp_path: Path, body: bytes, num_tensors: int, num_entries: int, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        open_gguf(_file(tmp_path, body, num_tensors, num_entries))


def test_crafted_files_differ_from_a_good_one_only_in_the_fault(tmp_path: Path) -> None:
    body = _tensor(b"t", (4,), 0, 0)
    body += bytes(-(24 + len(body)) % 32) + np.arange(4, dtype="<f4").tobytes()
    np.testing.assert_array_equal(open_gguf(_file(tmp_path, body, 1)).read("t"), [0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("version", [0, 1, 4, 3 << 24])
def test_other_versions_are_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "v.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
    with pytest.raises(ModelError, match=f"GGUF version {version}.*Versions 2 and 3"):
        open_gguf(path)


def test_another_magic_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zip.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(40))
    with pytest.raises(ModelError, match="expected b'GGUF'"):
        open_gguf(path)


def test_values_that_are_not_finite_are_refused(tmp_path: Path, write_gguf: GgufWriter) -> None:
    poisoned = np.ones(64, np.float32)
    poisoned[7] = np.inf
    path = write_gguf(tmp_path / "inf.gguf", {"tensors": {"output_norm.weight": poisoned}})
    with pytest.raises(ModelError, match=r"output_norm\.weight holds values that are not finite"):
        open_gguf(path).read("output_norm.weight")


def _pulls_or_refuses(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file that is refused leaves nothing in the cache but an empty lock; one that is read leaves a whole model."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "fuzz.gguf").write_bytes(content)
    try:
        whole = pull(folder / "fuzz.gguf", cache=folder / "cache")
    except ModelError:
        expected = set()
    else:
        assert open_folder(whole.path) == whole
        expected = {whole.path}
    kept = {path for path in (folder / "cache" / "models").iterdir() if not path.name.endswith(".lock")}
    assert kept == expected
    assert sum(path.stat().st_size for path in folder.rglob("*.lock")) == 0
    assert (folder / "fuzz.gguf").read_bytes() == content


@given(content=st.binary(max_size=400), counts=st.tuples(st.integers(0, 3), st.integers(0, 3)))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_a_model_error_and_leave_nothing_in_the_cache(
    content: bytes, counts: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    _pulls_or_refuses(b"GGUF" + struct.pack("<IQQ", 3, *counts) + content, tmp_path_factory)


EXTREMES = [struct.pack("<Q", value) for value in (0, 1, 1 << 31, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1)]


@given(
    where=st.floats(0.0, 1.0, exclude_max=True),
    patch=st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from(EXTREMES)),
    in_entries=st.booleans(),
)
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_header_gives_a_model_error_and_an_empty_cache_or_a_whole_model(
    where: float, patch: bytes, in_entries: bool, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Damage falls on the first entries or anywhere before the tensors' bytes."""
    content = bytearray(small.read_bytes())
    header_bytes = min(tensor.begin for tensor in open_gguf(small).tensors.values())
    at = int(where * (1200 if in_entries else header_bytes))
    content[at : at + len(patch)] = patch
    _pulls_or_refuses(bytes(content), tmp_path_factory)
