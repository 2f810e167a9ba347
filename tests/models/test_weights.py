"""Oracle: the safetensors package, hashlib, and the digest of the policy's own weights."""

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.errors import ModelError
from kifu.models.weights import hash_tensors, stored_tensors, write_safetensors
from kifu.policy import Weights

VALUES: dict[str, npt.NDArray[np.float32]] = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.full((1, 1), 1.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
}


def test_written_file_is_what_the_safetensors_package_reads(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {name: values.shape for name, values in VALUES.items()}, lambda name: VALUES[name])
    found = safetensors.numpy.load_file(path)
    assert found.keys() == VALUES.keys()
    for name, values in VALUES.items():
        np.testing.assert_array_equal(found[name], values, strict=True)


def test_a_value_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tensor b has shape \(2, 3\), its header says \(6,\)"):
        write_safetensors(tmp_path / "model.safetensors", {"b": (6,)}, lambda name: VALUES[name])


def test_digest_is_that_of_the_policys_weights_whatever_the_sharding_and_dtype(tmp_path: Path) -> None:
    half = torch.arange(4, dtype=torch.bfloat16)
    safetensors.torch.save_file({"b": torch.from_numpy(VALUES["b"]), "h": half}, tmp_path / "model.safetensors")
    safetensors.torch.save_file({"h": half}, tmp_path / "model-2.safetensors", metadata={"note": "x"})
    safetensors.torch.save_file({"b": torch.from_numpy(VALUES["b"])}, tmp_path / "model-1.safetensors")
    bits = half.view(torch.uint16).numpy()
    expected = Weights(version=0, tensors={"b": VALUES["b"], "h": bits}, bfloat16=frozenset({"h"})).digest()
    assert hash_tensors(stored_tensors([tmp_path / "model.safetensors"])) == expected
    shards = [tmp_path / "model-2.safetensors", tmp_path / "model-1.safetensors"]
    assert hash_tensors(stored_tensors(shards)) == expected


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors"):
        safetensors.numpy.save_file({"a": VALUES["a"]}, tmp_path / name)
    with pytest.raises(ModelError, match=r"tensor a also stands in model-1\.safetensors"):
        stored_tensors(sorted(tmp_path.iterdir()))


def _crafted(path: Path, header: object, body: bytes = bytes(64)) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def _entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([], "a list, expected a table"),
        ({"t": _entry([2], 0, 4)}, "size must fit"),
        ({"t": _entry([-1, -1], 0, 4)}, "size must fit"),
        ({"t": _entry([1], 4, 0)}, "size must fit"),
        ({"t": _entry([1], 0, 4, "Q4")}, "size must fit"),
        ({"t": {"dtype": "F32"}}, "size must fit"),
        ({"t": _entry([2], 0, 8), "u": _entry([2], 4, 12)}, "u overlaps"),
        ({"t": _entry([1 << 40], 0, 1 << 42)}, "truncated"),
    ],
)
def test_a_header_that_does_not_hold_is_named(tmp_path: Path, header: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        stored_tensors([_crafted(tmp_path / "model.safetensors", header)])


@given(
    content=st.one_of(
        st.binary(max_size=80),
        st.text(max_size=60).map(lambda text: struct.pack("<Q", 20) + text.encode("utf-8", "replace")),
    )
)
@settings(max_examples=100, deadline=None)
def test_any_bytes_give_a_model_error(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=str(path)):
        stored_tensors([path])
