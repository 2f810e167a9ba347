"""How many rows a forward may have: from kernels that are made up, and from those of this machine."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Phi3Config, PreTrainedConfig

from kifu.engines.hf.attention import Feed
from kifu.engines.hf.backend import Backend, KeptBackend, choose_backend, is_reproducible
from kifu.engines.hf.head import Head
from kifu.engines.hf.loading import load_model
from kifu.engines.hf.rows import ALL, SIZES, Product, Rows, measure_rows, products_of, random_rows
from kifu.models import ModelFolder


def kernel(*groups: tuple[int, ...]) -> Product:
    """One that sums differently in each of these groups of sizes, and otherwise in all others."""

    def compute(rows: Tensor) -> Tensor:
        number = next((at for at, group in enumerate(groups, 1) if rows.shape[1] in group), 0)
        return rows * (1.0 + number / 64)

    return Product(compute=compute, rows_RI=random_rows(256, 4, like=torch.zeros(1)))


@pytest.mark.parametrize(
    ("kernels", "wanted"),
    [
        ([kernel()], SIZES),
        ([kernel((8,))], SIZES[1:]),
        ([kernel((8,)), kernel((224, 256))], SIZES[1:-2]),
        ([kernel((8, 16, 24, 32), (112,))], tuple(size for size in SIZES if size > 32 and size != 112)),
        ([kernel((40, 48), (56,), (64,), (72, 80, 88, 96), SIZES[12:])], (8, 16, 24, 32)),
        ([kernel(*((size,) for size in SIZES))], (32,)),
    ],
    ids=["all agree", "few rows differ", "two products", "a hole", "small ones are cheaper", "none agree"],
)
def test_of_the_sizes_that_agree_the_cheapest_set_is_used(kernels: list[Product], wanted: tuple[int, ...]) -> None:
    assert measure_rows(kernels, SIZES).sizes == wanted


@pytest.mark.parametrize(("count", "wanted"), [(1, 40), (39, 40), (40, 40), (41, 64), (65, 120), (120, 120)])
def test_rows_are_padded_to_the_next_size(count: int, wanted: int) -> None:
    assert count + Rows((40, 64, 120)).padding(count) == wanted


def test_a_cost_is_that_of_the_forwards_it_takes() -> None:
    """130 rows in forwards of at most 64, sizes 8 and 64: 64, 64 and 8, and sixteen more for each forward."""
    assert Rows((8, 64)).cost(130) == 64 + 64 + 8 + 3 * 16


def test_one_changed_number_in_a_thousand_is_seen() -> None:
    """bfloat16 hides most differences in how a sum was split."""

    def compute(rows: Tensor) -> Tensor:
        found = rows.clone()
        found[0, 0, 0] += float(rows.shape[1] > 64 and rows[0, 0, 0] == marked)
        return found

    rows_RI = random_rows(256, 1024, like=torch.zeros(1, dtype=torch.bfloat16))
    marked = rows_RI[128, 0]
    found = measure_rows([Product(compute=compute, rows_RI=rows_RI)], (32, 64, 128))
    assert found.sizes in ((32, 64), (128,))


class Fickle(nn.Linear):
    """Rounds by the number of rows it is given, as kernels do, only more; 48 rows are not like their neighbours."""

    sizes: set[int]

    def forward(self, given: Tensor) -> Tensor:
        count = given.shape[-2]
        self.sizes.add(count)
        return super().forward(given) * (1 + 1e-3 * ((count >= 40) + (count >= 192) + 2 * (count == 48)))


def test_a_forward_has_only_the_sizes_that_agree(tiny_model: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long feeds are cut, short ones padded, and no state differs."""
    model = load_model(str(tiny_model.path), dtype="float32", device="cpu")
    block = model.whole.model.layers[0].mlp
    fickle = Fickle(block.up_proj.in_features, block.up_proj.out_features, bias=False)
    fickle.sizes = set()
    monkeypatch.setattr(block, "up_proj", fickle)
    backend = choose_backend(model, num_slots=4, capacity=400)
    assert isinstance(backend, KeptBackend)
    assert set(backend.rows.sizes) <= set(range(40, 192)) - {48}

    ids = tuple(range(5, 305))
    fickle.sizes.clear()
    whole = backend.forward([Feed(slot=0, start=0, token_ids=ids)])
    alone = [backend.forward([Feed(slot=1, start=at, token_ids=ids[at : at + 1])]) for at in range(60)]

    assert torch.equal(torch.cat(alone), whole[:60])
    assert whole.shape[0] == 300
    assert fickle.sizes <= set(backend.rows.sizes)
    assert len(fickle.sizes) > 1
    backend.rows = ALL
    assert not torch.equal(backend.forward([Feed(slot=2, start=0, token_ids=ids)]), whole)


def test_logits_do_not_depend_on_how_many_are_asked_for() -> None:
    """On this machine, whatever its kernels do."""
    torch.manual_seed(0)
    head = Head(torch.randn(900, 576))
    hidden = list(torch.randn(100, 576))
    together = head.logits(hidden, [None] * 100)
    for count in (1, 7, 9, 33, 64, 65):
        found = head.logits(hidden[:count], [None] * count)
        assert all((one == two).all() for one, two in zip(found, together, strict=False)), count


def saved(config: PreTrainedConfig, folder: Path) -> str:
    torch.manual_seed(0)
    make: Callable[..., nn.Module] = AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.float32)
    model.save_pretrained(folder)  # type: ignore[operator]
    return str(folder)


def gpt2(*, layers: int) -> PreTrainedConfig:
    """64 learned positions."""
    config = GPT2Config(vocab_size=300, n_positions=64, n_embd=48, n_layer=layers, n_head=4)
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.0
    return config


def differing(backend: Backend, *, vocabulary: int, count: int) -> int:
    """States of a context fed in random pieces among random neighbours that are not as alone."""
    random = np.random.default_rng(11)
    ids = tuple(int(token) for token in random.integers(3, vocabulary, count))
    alone = backend.forward([Feed(slot=0, start=0, token_ids=ids)])
    start = found = 0
    while start < count:
        length = int(min(count - start, random.choice([1, 1, 2, 3, 7, 30])))
        feeds = [Feed(slot=3, start=start, token_ids=ids[start : start + length])]
        for other in random.choice([4, 5, 6, 8, 9, 11], int(random.integers(0, 5)), replace=False):
            feeds.append(Feed(slot=int(other), start=0, token_ids=ids[:1] * int(random.choice([1, 5, 40, 140, 199]))))
        states = backend.forward(feeds)[:length]
        found += int((states != alone[start : start + length]).any(-1).sum())
        start += length
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("layers", "inner"), [(1, 1536), (4, 1152)])
def test_wide_layers_agree_with_themselves(tmp_path: Path, dtype: str, layers: int, inner: int) -> None:
    """Widths of a real model, at which kernels of this machine may change; the tiny model is too narrow to show it."""
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=576,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=512,
    )
    model = load_model(saved(config, tmp_path / "model"), dtype=dtype, device="cpu")
    backend = choose_backend(model, num_slots=12, capacity=200)
    assert is_reproducible(backend, 300, num_slots=12, capacity=200)
    assert differing(backend, vocabulary=300, count=200) == 0


def test_every_kind_and_shape_of_layer_is_tried_once(tmp_path: Path) -> None:
    """GPT-2 has its own kind of linear layer; the output layer is no part of the forward."""
    model = load_model(saved(gpt2(layers=3), tmp_path / "model"), dtype="float32", device="cpu")
    shapes = sorted(product.rows_RI.shape[1] for product in products_of(model.whole, leave=[model.head]))
    assert shapes == [48, 48, 48, 192]  # attention in and out, inner layer in and out


@pytest.mark.parametrize("context", [1, 16, 64])
@pytest.mark.parametrize("slots", [1, 3, 4])
def test_learned_positions_are_not_probed_beyond_their_table(tmp_path: Path, context: int, slots: int) -> None:
    model = load_model(saved(gpt2(layers=1), tmp_path / "model"), dtype="float32", device="cpu")
    backend = choose_backend(model, num_slots=slots, capacity=context)
    assert isinstance(backend, KeptBackend)
    assert is_reproducible(backend, 300, num_slots=slots, capacity=context)


def test_a_rotation_by_the_longest_context_is_not_shared(tmp_path: Path) -> None:
    """Phi-3's long rotation changes for every context of a forward as soon as one of them is long."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [4.0] * 6, "rope_theta": 10_000.0}
    config = Phi3Config(
        vocab_size=300,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        original_max_position_embeddings=128,
        rope_parameters={**rope, "original_max_position_embeddings": 128},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attention_dropout=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )
    model = load_model(saved(config, tmp_path / "model"), dtype="float32", device="cpu")
    backend = choose_backend(model, num_slots=12, capacity=200)
    assert not isinstance(backend, KeptBackend)
    short, long = (Feed(slot=slot, start=0, token_ids=tuple(range(9, count))) for slot, count in ((0, 49), (1, 199)))
    alone, beside = backend.forward([short]), backend.forward([replace(short, slot=2), long])[:40]
    assert torch.equal(beside, alone)
