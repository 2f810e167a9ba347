"""Models from a hub over HTTPS, with nothing but the standard library."""

import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from kifu.errors import ModelError
from kifu.models.progress import Progress

_WANTED = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|model\.safetensors\.index)\.json"
    r"|chat_template\.jinja|model[A-Za-z0-9._-]*\.safetensors|LICENSE[A-Za-z0-9._-]*|README\.md"
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PROBE_S, _TRANSFER_S = 5.0, 60.0
_LISTING_LIMIT_BYTES = 10_000_000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a hub model."""

    name: str
    size: int
    sha256: str | None
    """Stated by the hub for large files only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """A hub model at one revision."""

    repository: str
    revision: str
    licence: str | None
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def is_repository(name: str) -> bool:
    """Whether ``name`` has the form ``owner/model``."""
    return _REPOSITORY.fullmatch(name) is not None


def find_model(repository: str) -> RemoteModel:
    """Ask the hub for a model's newest revision; waits at most five seconds for an answer.

    The hub is ``HF_ENDPOINT`` where set. ``HF_HUB_OFFLINE=1`` switches it off.

    Raises:
        ModelError: the hub is off or out of reach, does not know the model, or answers nonsense.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise ModelError(f"model {repository}: the hub is off (HF_HUB_OFFLINE is set). Unset it, or give a local path.")
    url = f"{_endpoint()}/api/models/{quote(repository)}?blobs=true"
    try:
        with _open(url, _PROBE_S) as answer:
            listing = json.loads(answer.read(_LISTING_LIMIT_BYTES))
    except urllib.error.HTTPError as cause:
        cause.close()
        raise ModelError(
            f"model {repository}: {_endpoint()} answered {cause.code}. It is misspelt, private or gated; "
            "download it with your own account and give the path."
        ) from cause
    except (OSError, http.client.HTTPException) as cause:
        raise ModelError(
            f"model {repository}: {_endpoint()} is out of reach ({cause}). Check the network, or give a local path."
        ) from cause
    except (ValueError, RecursionError) as cause:
        raise ModelError(
            f"model {repository}: {_endpoint()} did not answer with JSON; is a proxy in between?"
        ) from cause
    return _parse(repository, listing)


def fetch_model(model: RemoteModel, folder: Path, progress: Progress) -> None:
    """Download every file of a model into an existing folder and check sizes and stated digests.

    Raises:
        ModelError: the connection breaks, or a file is not what the hub listed.
    """
    done = 0
    for file in model.files:
        url = f"{_endpoint()}/{quote(model.repository)}/resolve/{quote(model.revision)}/{quote(file.name)}"
        digest, size = hashlib.sha256(), 0
        with (folder / file.name).open("xb") as target:
            for chunk in _chunks(url):
                size += len(chunk)
                if size > file.size:
                    break
                target.write(chunk)
                digest.update(chunk)
                progress(f"downloading {model.repository}", done + size, model.size)
        if size != file.size or (file.sha256 is not None and digest.hexdigest() != file.sha256):
            raise ModelError(
                f"{url}: {size} bytes of SHA-256 {digest.hexdigest()}, the hub lists {file.size} of "
                f"{file.sha256 or 'no digest'}. The transfer broke or was tampered with; pull again."
            )
        done += size


def _endpoint() -> str:
    found = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if urlsplit(found).scheme not in ("http", "https"):
        raise ModelError(f"HF_ENDPOINT is {found!r}, expected an address that starts with https:// or http://")
    return found


def _open(url: str, timeout_s: float) -> http.client.HTTPResponse:
    """Open an address; a redirect from HTTPS to plain HTTP is refused before anything is read."""
    request = urllib.request.Request(url, headers={"User-Agent": "kifu"})
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)
    if urlsplit(url).scheme == "https" and urlsplit(answer.url).scheme != "https":
        answer.close()
        raise urllib.error.URLError(f"redirected from HTTPS to {answer.url}")
    return answer


def _chunks(url: str) -> Iterator[bytes]:
    try:
        with _open(url, _TRANSFER_S) as answer:
            while chunk := answer.read(_CHUNK_BYTES):
                yield chunk
    except (OSError, http.client.HTTPException) as cause:
        if isinstance(cause, urllib.error.HTTPError):
            cause.close()
        raise ModelError(f"{url}: the transfer failed ({cause}). Check the network and pull again.") from cause


def _parse(repository: str, listing: object) -> RemoteModel:
    """Take the files that make a model folder; names with a slash, odd characters or other endings are left out."""
    match listing:
        case {"sha": str(revision), "siblings": [*entries]}:
            found = [_remote_file(entry) for entry in entries]
        case _:
            raise ModelError(f"model {repository}: the hub's listing has no revision and files; is HF_ENDPOINT a hub?")
    match listing:
        case {"cardData": {"license": str(licence)}}:
            stated: str | None = licence
        case _:
            stated = None
    files = {file.name: file for file in found if file is not None}
    if not any(name.endswith(".safetensors") for name in files):
        raise ModelError(f"model {repository}: holds no model*.safetensors. Other formats are not read.")
    return RemoteModel(repository=repository, revision=revision, licence=stated, files=tuple(files.values()))


def _remote_file(entry: object) -> RemoteFile | None:
    match entry:
        case {"rfilename": str(name), "size": int(size)} if _WANTED.fullmatch(name) and size >= 0:
            match entry:
                case {"lfs": {"sha256": str(sha256)}}:
                    return RemoteFile(name=name, size=size, sha256=sha256)
            return RemoteFile(name=name, size=size, sha256=None)
    return None
