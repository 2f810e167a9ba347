"""A folder whose weights are not exactly the model its configuration describes is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kifu.engines.hf import load_model
from kifu.errors import ModelError
from kifu.models import ModelFolder

Tensors = dict[str, Tensor]
LAST = "model.layers.1.mlp.up_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def folder(tiny_model: ModelFolder, tmp_path: Path) -> Path:
    """A copy of the tiny model, to damage."""
    return Path(shutil.copytree(tiny_model.path, tmp_path / "model"))


def _configure(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 3}, r"9 tensors missing \(model\.layers\.2\..*drawn at random"),
        ({"num_hidden_layers": 1}, r"0 tensors missing, 9 tensors unknown \(model\.layers\.1\."),
        ({"hidden_size": 128}, r"of another shape \(.*\(600, 64\) for \(600, 128\)"),
        ({"hidden_size": "64"}, "cannot be loaded: .*expected int, got str"),
        ({"num_attention_heads": 7}, "cannot be loaded: .*not a multiple"),
        ({"model_type": "foo"}, "cannot be loaded: .*`foo`"),
    ],
)
def test_a_configuration_that_is_not_the_weights_is_refused(
    folder: Path, fields: dict[str, object], message: str
) -> None:
    """A layer of the tiny Llama has nine tensors; nothing may be filled in or left out."""
    _configure(folder, **fields)

    with pytest.raises(ModelError, match=message) as refusal:
        load_model(str(folder), dtype="float32", device="cpu")

    assert str(folder) in str(refusal.value)


def test_one_missing_tensor_is_named(folder: Path) -> None:
    _rewrite(folder, lambda tensors: tensors.pop(LAST))

    with pytest.raises(ModelError, match=rf"1 tensor missing \({LAST}\)"):
        load_model(str(folder), dtype="float32", device="cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_found_wherever_it_is(folder: Path, value: float) -> None:
    """In the embedding of an id that no probe happens to look at."""
    _rewrite(folder, lambda tensors: tensors[EMBEDDING][599].fill_(value))

    with pytest.raises(ModelError, match=rf"1 tensor with values that are not finite \({EMBEDDING}\)"):
        load_model(str(folder), dtype="float32", device="cpu")


def test_code_in_the_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    """Neither for a type transformers knows nor for one it does not."""
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    _configure(folder, auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    load_model(str(folder), dtype="float32", device="cpu")
    _configure(folder, model_type="evil")

    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(str(folder), dtype="float32", device="cpu")

    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_not_read_even_where_transformers_would(folder: Path) -> None:
    """Beside safetensors under a name transformers does not look for."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "model_other.safetensors")

    with pytest.raises(ModelError, match="safetensors"):
        load_model(str(folder), dtype="float32", device="cpu")
