"""Trees through a model of sequences."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kifu.batching import Row, Tree, pack_rows
from kifu.engines.hf import blocks
from kifu.engines.hf.forward import ancestor_mask, forest_hidden, is_chain, paths
from kifu.engines.hf.loading import load_model
from kifu.engines.hf.trainer import HfTrainer
from kifu.models import ModelFolder
from kifu.policy import Engine
from kifu.records import as_floats, as_ints
from kifu.testing.trainers import SHARE_ALWAYS

Make = Callable[..., Engine]


def tree_of(parents: list[int], vocabulary: int = 600) -> Tree:
    """A tree with random tokens."""
    depths = list[int]()
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return Tree(
        token_ids=as_ints(np.random.default_rng(1).integers(0, vocabulary, len(parents))),
        depths=np.array(depths, dtype=np.int32),
        parents=np.array(parents, dtype=np.int32),
    )


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    """Parents before children, several roots allowed."""
    count = draw(st.integers(1, 25))
    return [draw(st.integers(-1, node - 1)) for node in range(count)]


@given(parents=forests())
@settings(max_examples=80, deadline=None)
def test_mask_shows_exactly_the_ancestors(parents: list[int]) -> None:
    """Walking up the tree, node by node, is the oracle."""
    wanted = np.zeros((len(parents), len(parents)), dtype=bool)
    for node in range(len(parents)):
        at = node
        while at >= 0:
            wanted[node, at] = True
            at = parents[at]

    np.testing.assert_array_equal(ancestor_mask(np.array(parents, dtype=np.int32)), wanted)


@pytest.mark.parametrize("unrolled", [False, True])
def test_every_node_has_the_state_of_its_own_sequence(
    tiny_model: ModelFolder, plain: PreTrainedModel, unrolled: bool
) -> None:
    """Plain transformers on each root-to-leaf path is the oracle."""
    model = load_model(str(tiny_model.path), dtype="float32", device="cpu")
    trees = [tree_of([-1, 0, 1, 2, 2, 4, 1, 6, 7]), tree_of([-1, 0, 1, 2])]

    with torch.no_grad():
        found = forest_hidden(model, trees, unrolled=unrolled)

    start = 0
    for tree in trees:
        for path in paths(tree.parents):
            ids = torch.from_numpy(tree.token_ids[path].astype(np.int64))[None]
            with torch.no_grad():
                wanted = plain.base_model(ids).last_hidden_state[0]
            torch.testing.assert_close(found[start + path], wanted, atol=2e-5, rtol=0)
        start += tree.token_ids.size


def bushy(count: int, *, branching: float) -> Tree:
    """Long runs and, with this probability at a node, a branch from anywhere before it."""
    random, parents = np.random.default_rng(5), [-1]
    for node in range(1, count):
        parents.append(int(random.integers(0, node)) if random.random() < branching else node - 1)
    return tree_of(parents)


@pytest.mark.parametrize("nodes", [1, 5, 64, 128, 1000, None])
def test_blocks_of_any_size_give_the_states_of_separate_sequences(
    tiny_model: ModelFolder, plain: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, nodes: int | None
) -> None:
    """Three hundred nodes; plain transformers on each root-to-leaf path is the oracle."""
    tree, model = bushy(300, branching=0.07), load_model(str(tiny_model.path), dtype="float32", device="cpu")
    answered: list[blocks.Block] = []
    of_block = blocks._of_block

    def counted(
        block: blocks.Block, query: torch.Tensor, kept: tuple[torch.Tensor, torch.Tensor], *, scale: float
    ) -> torch.Tensor:
        answered.append(block)
        return of_block(block, query, kept, scale=scale)

    monkeypatch.setattr(blocks, "_of_block", counted)
    monkeypatch.setattr(blocks, "COPIES", 300)

    with torch.no_grad():
        found = forest_hidden(model, [tree], unrolled=False, nodes=nodes)

    layers = plain.config.num_hidden_layers
    assert len(answered) == (0 if nodes is None or nodes >= 300 else layers * -(-300 // nodes))
    for path in paths(tree.parents):
        ids = torch.from_numpy(tree.token_ids[path].astype(np.int64))[None]
        with torch.no_grad():
            wanted = plain.base_model(ids).last_hidden_state[0]
        torch.testing.assert_close(found[path], wanted, atol=2e-5, rtol=0)


def test_blocks_stop_where_they_would_copy_more_than_they_save() -> None:
    """Of 1,500 nodes in one run the blocks would copy every key six times; with many branches two or three times."""
    run, branched = (ancestor_mask(bushy(1500, branching=share).parents) for share in (0.0, 0.2))

    deep, flat = (
        blocks.masked(torch.from_numpy(visible), dtype=torch.float32, nodes=128) for visible in (run, branched)
    )

    assert not hasattr(deep, "kifu_blocks")
    assert sum(block.keys_S.numel() for block in flat.kifu_blocks) < 3 * 1500  # type: ignore[attr-defined]


def test_a_model_whose_blocks_are_wrong_trains_without_them(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small tree is tried with blocks first, and the whole mask is still right."""
    of_block = blocks._of_block
    monkeypatch.setattr(blocks, "_of_block", lambda *given, scale: 1.01 * of_block(*given, scale=scale))

    trainer = make().trainer

    assert isinstance(trainer, HfTrainer)
    assert trainer.tree_exact
    assert trainer._nodes is None


@pytest.mark.parametrize("at", ["by position", "by keyword", "beside another argument", "nowhere"])
def test_whatever_carries_no_blocks_is_answered_as_transformers_does(at: str) -> None:
    """The mask by keyword too; another argument, here a soft cap, is transformers' to refuse."""
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 20, 8, generator=random) for heads in (4, 2, 2))
    visible = torch.from_numpy(ancestor_mask(bushy(20, branching=0.2).parents))
    mask = blocks.masked(visible, dtype=torch.float32, nodes=6)
    module = torch.nn.Module()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    wanted, _ = sdpa_attention_forward(module, query, key, value, mask.clone(), scaling=0.3, is_causal=False)

    match at:
        case "by position":
            found, _ = blocks.attend(module, query, key, value, mask, scaling=0.3)
        case "by keyword":
            found, _ = blocks.attend(module, query, key, value, attention_mask=mask, scaling=0.3)
        case "beside another argument":
            with pytest.raises(ValueError, match="softcap"):
                blocks.attend(module, query, key, value, mask, scaling=0.3, softcap=30.0)
            return
        case _:
            found, _ = blocks.attend(module, query, key, value, mask.clone(), scaling=0.3, is_causal=False)

    torch.testing.assert_close(found, wanted)


def test_chains_of_different_lengths_are_padded_without_effect(tiny_model: ModelFolder, plain: PreTrainedModel) -> None:
    """Three chains, the longest five times the shortest."""
    model = load_model(str(tiny_model.path), dtype="float32", device="cpu")
    trees = [tree_of(list(range(-1, size - 1))) for size in (4, 20, 17)]
    assert all(is_chain(tree) for tree in trees)

    with torch.no_grad():
        found = forest_hidden(model, trees, unrolled=False)
        wanted = [plain.base_model(torch.from_numpy(tree.token_ids.astype(np.int64))[None])[0][0] for tree in trees]

    torch.testing.assert_close(found, torch.cat(wanted), atol=2e-5, rtol=0)


def test_a_row_and_its_tree_predict_the_same_tokens(make: Make) -> None:
    """Packing keeps the link between a trained token and the node that predicts it."""
    ids = np.random.default_rng(3).integers(3, 600, 20)
    rows = [
        Row(
            trajectory=str(number),
            token_ids=as_ints([*ids[:12], *(ids[12:] + number)]),
            positions=as_ints([10, 13]),
            behaviour_logprobs=as_floats([-1, -1]),
            temperatures=as_floats([1, 1]),
            supports=(None, None),
            advantages=np.ones(2),
            weights=np.ones(2),
            turns=as_ints([0, 1]),
        )
        for number in range(3)
    ]
    trainer = make().trainer

    def logprobs(layout: str) -> np.ndarray:
        with torch.no_grad():
            batches = pack_rows(rows, max_nodes=500, layout=layout, cost=SHARE_ALWAYS)  # type: ignore[arg-type]
            return np.concatenate([trainer.terms(batch).logp_N.numpy() for batch in batches])  # type: ignore[attr-defined]

    np.testing.assert_allclose(logprobs("tree"), logprobs("rows"), atol=1e-5)
