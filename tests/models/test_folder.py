"""Oracle: hashlib over the files, and what a folder says about itself."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer

from kifu.errors import ModelError
from kifu.models import ModelFolder, digests, open_folder


@pytest.fixture
def copied(tiny_model: ModelFolder, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model.path, tmp_path / "copy")


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_tokenizer_and_template_digests_are_over_what_transformers_uses(tiny_model: ModelFolder) -> None:
    found = digests(tiny_model.path)
    assert found.tokenizer == hashlib.sha256((tiny_model.path / "tokenizer.json").read_bytes()).hexdigest()
    template = AutoTokenizer.from_pretrained(tiny_model.path).chat_template
    assert found.template == hashlib.sha256(template.encode()).hexdigest()


def test_a_template_file_goes_before_the_field(copied: Path) -> None:
    (copied / "chat_template.jinja").write_text("{{ 1 }}")
    assert AutoTokenizer.from_pretrained(copied).chat_template == "{{ 1 }}"
    assert digests(copied).template == hashlib.sha256(b"{{ 1 }}").hexdigest()


def test_a_template_that_is_no_text_is_refused(copied: Path) -> None:
    (copied / "tokenizer_config.json").write_text('{"chat_template": "\\ud800"}')
    with pytest.raises(ModelError, match="chat_template is no text"):
        digests(copied)


def test_no_template_is_none_not_the_digest_of_nothing(copied: Path) -> None:
    (copied / "tokenizer_config.json").unlink()
    assert digests(copied).template is None


def test_second_digest_does_not_read_the_weights(copied: Path) -> None:
    """The weights are altered behind size and time, which only verification notices."""
    weights = copied / "model.safetensors"
    before, times = digests(copied), weights.stat()
    _flip_last_byte(weights)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digests(copied) == before
    assert digests(copied, verify=True).weights != before.weights
    assert digests(copied).weights != before.weights


def test_changed_weights_have_another_digest(copied: Path) -> None:
    before = digests(copied)
    _flip_last_byte(copied / "model.safetensors")
    assert digests(copied).weights != before.weights


def test_damaged_memory_of_a_digest_is_ignored(copied: Path, tiny_model: ModelFolder) -> None:
    for content in ("", "[]", "{", '{"files": 3, "weights": 4}'):
        (copied / ".kifu-digests.json").write_text(content)
        assert digests(copied) == tiny_model.digests


def test_licence_of_a_foreign_folder_is_what_its_card_states(copied: Path) -> None:
    (copied / "kifu.json").unlink()
    assert open_folder(copied).licence is None
    (copied / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\nlicense: other\n")
    assert open_folder(copied).licence == "apache-2.0"
    assert open_folder(copied).source == str(copied)
    (copied / "README.md").write_text("# A model\nlicense: other\n")
    assert open_folder(copied).licence is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, r"no config\.json"),
        ("config.json", "{", "not JSON"),
        ("config.json", "[]", "holds a list"),
        ("config.json", "{}", '"architectures" is None'),
        ("config.json", '{"architectures": ["BertForMaskedLM"]}', "architecture `BertForMaskedLM`.*causal"),
        ("tokenizer.json", None, r"no tokenizer\.json"),
        ("model.safetensors", None, r"no model\*\.safetensors"),
        ("model.safetensors", "not safetensors at all", "truncated, or not safetensors"),
    ],
)
def test_incomplete_folder_is_named(copied: Path, name: str, content: str | None, message: str) -> None:
    if content is None:
        (copied / name).unlink()
    else:
        (copied / name).write_text(content)
    with pytest.raises(ModelError, match=message) as refusal:
        open_folder(copied)
    assert str(copied) in str(refusal.value)


def test_parameter_count_is_that_of_the_stored_tensors(tiny_model: ModelFolder) -> None:
    header_bytes = int.from_bytes((tiny_model.path / "model.safetensors").read_bytes()[:8], "little")
    size = (tiny_model.path / "model.safetensors").stat().st_size
    assert tiny_model.num_parameters == (size - 8 - header_bytes) // 4
    assert json.loads((tiny_model.path / "config.json").read_text())["dtype"] == "float32"


def test_a_quantized_model_is_refused(copied: Path) -> None:
    """Eight-bit integers are not weights without their scales."""
    tensors = load_file(copied / "model.safetensors")
    save_file({name: (values * 100).astype(np.int8) for name, values in tensors.items()}, copied / "model.safetensors")

    with pytest.raises(ModelError, match=r"quantized.*int8.*unquantized"):
        open_folder(copied)


def test_a_template_that_is_not_text_is_named(copied: Path) -> None:
    """UTF-16 bytes where a template belongs."""
    (copied / "chat_template.jinja").write_bytes("{{ messages }}".encode("utf-16"))

    with pytest.raises(ModelError, match=r"chat_template\.jinja: not UTF-8"):
        open_folder(copied)
