"""Content-addressed bytes of a run: bitmaps of supports, large snapshots, evidence.

Axis: ``V`` vocabulary.
"""

import hashlib
from pathlib import Path

import numpy as np

from kifu.errors import AlteredError, StorageError
from kifu.records.files import make_folder, write_atomically
from kifu.records.tokens import Bools, Ints, Support, SupportKind, as_ints


class BlobStore:
    """Bytes by their SHA-256, under ``blobs/<first two digits>/<the other 62>``. Safe for several writers."""

    def __init__(self, folder: Path) -> None:
        """Use a folder; it is created with the first blob."""
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Where a blob lies."""
        return self.folder / digest[:2] / digest[2:]

    def put(self, data: bytes) -> str:
        """Keep ``data``, durable on return, and give its digest; bytes already there are not written again."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if not path.exists():
            make_folder(path.parent)
            write_atomically(path, [data], what="a blob")
        return digest

    def has(self, digest: str) -> bool:
        """Whether a blob is there; its content is verified only by `get`."""
        return self.path(digest).exists()

    def get(self, digest: str) -> bytes:
        """The bytes of a digest.

        Raises:
            StorageError: there is no such blob.
            AlteredError: its bytes do not match the digest.
        """
        path = self.path(digest)
        if not path.exists():
            raise StorageError(f"{path}: no blob {digest[:12]}; it was never written or the folder is incomplete")
        data = path.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise AlteredError(f"{path}: holds {found[:12]}, expected {digest[:12]}; restore it from a copy")
        return data

    def support(self, allowed_V: Bools) -> Support | None:
        """The smallest way to write down a set of allowed tokens; None when every token is allowed."""
        kept: Ints = as_ints(np.flatnonzero(allowed_V))
        if kept.size == allowed_V.size:
            return None
        left_out = allowed_V.size - kept.size
        if min(kept.size, left_out) * 32 <= allowed_V.size:
            if kept.size <= left_out:
                return Support(kind=SupportKind.IDS, ids=kept)
            return Support(kind=SupportKind.NOT_IDS, ids=as_ints(np.flatnonzero(~allowed_V)))
        return Support(kind=SupportKind.MASK, ids=as_ints([]), mask=self.put(pack_bitmap(allowed_V)))

    def allowed(self, support: Support | None, vocabulary: int) -> Bools:
        """``[V]`` which tokens a support allows."""
        found = np.ones(vocabulary, dtype=np.bool_)
        if support is None:
            return found
        if support.mask is not None:
            return unpack_bitmap(self.get(support.mask), vocabulary)
        found[support.ids] = False
        return found if support.kind is SupportKind.NOT_IDS else ~found


def pack_bitmap(allowed_V: Bools) -> bytes:
    """One bit per token, token ``8 i + j`` in bit ``j`` (value ``2^j``) of byte ``i``."""
    return np.packbits(allowed_V, bitorder="little").tobytes()


def unpack_bitmap(data: bytes, vocabulary: int) -> Bools:
    """``[V]`` the flags of a bitmap."""
    if len(data) != (vocabulary + 7) // 8:
        raise AlteredError(f"a bitmap of {len(data)} bytes cannot describe {vocabulary} tokens")
    return np.unpackbits(np.frombuffer(data, np.uint8), count=vocabulary, bitorder="little").astype(np.bool_)
