"""Blobs are what their name says, and supports take the smallest form that means the same."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.errors import AlteredError, StorageError
from kifu.records import BlobStore, SupportKind, pack_bitmap, unpack_bitmap


def test_a_blob_lies_under_its_sha256_and_comes_back(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"snapshot")
    assert digest == hashlib.sha256(b"snapshot").hexdigest() == store.put(b"snapshot")
    assert (tmp_path / digest[:2] / digest[2:]).read_bytes() == b"snapshot"
    assert store.has(digest)
    assert store.get(digest) == b"snapshot"


def test_missing_and_altered_blobs_are_named(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"snapshot")
    store.path(digest).write_bytes(b"snapshoT")
    with pytest.raises(AlteredError, match=f"expected {digest[:12]}"):
        store.get(digest)
    with pytest.raises(StorageError, match="no blob 000000000000"):
        store.get("0" * 64)


@given(st.lists(st.booleans(), max_size=40))
def test_bit_j_of_byte_i_is_token_8i_plus_j(flags: list[bool]) -> None:
    data = pack_bitmap(np.array(flags, dtype=np.bool_))
    assert [bool(data[token // 8] >> (token % 8) & 1) for token in range(len(flags))] == flags
    assert unpack_bitmap(data, len(flags)).tolist() == flags


def test_a_bitmap_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(AlteredError, match="2 bytes cannot describe 8 tokens"):
        unpack_bitmap(b"ab", 8)


@pytest.mark.parametrize(
    ("kept", "kind"), [(2, SupportKind.IDS), (998, SupportKind.NOT_IDS), (500, SupportKind.MASK)], ids=str
)
def test_the_smallest_form_is_taken_and_means_the_same(tmp_path: Path, kept: int, kind: SupportKind) -> None:
    store = BlobStore(tmp_path)
    allowed = np.zeros(1000, np.bool_)
    allowed[np.random.default_rng(0).permutation(1000)[:kept]] = True
    support = store.support(allowed)
    assert support is not None
    assert support.kind is kind
    assert (store.allowed(support, 1000) == allowed).all()


def test_everything_allowed_is_no_support(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    assert store.support(np.ones(10, np.bool_)) is None
    assert store.allowed(None, 10).all()
