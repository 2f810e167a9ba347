"""Attention over a tree, block by block: a node is compared with the keys its block can see, not with all of them.

A mask over a whole tree compares every node with every other and throws most of it away: with eight sequences that
share little, seven eighths. Nodes are numbered depth first, so 128 consecutive ones see their own path to the root and
one another. What is left out had weight zero; the numbers are those of the whole mask up to the order of sums.

The blocks ride on the mask. Every model hands the mask to its attention layers, and where one hands on a copy instead,
the copy says the same without them. They are found by the function that transformers calls under the name `sdpa`: it
answers any mask without blocks as it always did. A name of our own would change what models compute that ask for the
name (those with sparse indices keep their indices from any other than two).

Axes: ``M`` nodes, ``H`` query heads, ``S`` keys a block sees, ``D`` head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NODES = 128
"""Nodes of a block."""
COPIES = 4
"""How often a key may be copied for the blocks that see it, on average; deeper trees keep the whole mask."""
PLAIN = frozenset(
    {"scaling", "dropout", "is_causal", "sliding_window", "position_ids", "use_cache", "output_attentions"}
)
"""Arguments of an attention call under which a mask is all there is to know."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Consecutive nodes and what they see."""

    start: int
    stop: int
    keys_S: Tensor
    """Nodes that any of them sees, ascending."""
    bias_MS: Tensor
    """``[stop - start, S]`` 0 where a key is visible, -inf elsewhere."""
    repeated: dict[int, Tensor] = field(default_factory=dict)
    """The bias so many times, for layers with as many query heads to a key-value head."""

    def bias(self, share: int) -> Tensor:
        """``[share * (stop - start), S]``, made once for all layers."""
        if share not in self.repeated:
            self.repeated[share] = self.bias_MS.repeat(share, 1)
        return self.repeated[share]


def masked(visible_MM: Tensor, *, dtype: torch.dtype, nodes: int | None) -> Tensor:
    """``[1, 1, M, M]`` additive mask that carries its blocks, where they pay.

    Args:
        visible_MM: True where the column can be seen from the row.
        dtype: of the mask.
        nodes: of a block; None makes no blocks.
    """
    mask = torch.zeros(visible_MM.shape, dtype=dtype, device=visible_MM.device)
    mask.masked_fill_(~visible_MM, -torch.inf)
    found, count = mask[None, None], visible_MM.shape[0]
    if nodes is None or count <= nodes:
        return found
    blocks = []
    for start in range(0, count, nodes):
        stop = min(start + nodes, count)
        keys_S = visible_MM[start:stop].any(0).nonzero()[:, 0]
        blocks.append(Block(start=start, stop=stop, keys_S=keys_S, bias_MS=mask[start:stop, keys_S]))
    if sum(block.keys_S.numel() for block in blocks) <= COPIES * count:
        found.kifu_blocks = tuple(blocks)  # type: ignore[attr-defined]
    return found


def attend(module: nn.Module, query: Tensor, *others: Tensor | None, **arguments: object) -> tuple[Tensor, None]:
    """Attention by blocks where the mask carries them, else transformers' own.

    Args:
        module: the attention layer.
        query: ``[1, H, M, D]``.
        *others: keys, values, and mostly the mask.
        **arguments: what the model passes, the mask among it where it is not above.

    Returns:
        ``[1, M, H, D]``.
    """
    key, value, *masks = others
    mask = masks[0] if masks else arguments.get("attention_mask")
    blocks: Sequence[Block] | None = getattr(mask, "kifu_blocks", None)
    odd = any(name not in PLAIN | {"attention_mask"} and told is not None for name, told in arguments.items())
    if blocks is None or key is None or value is None or odd or arguments.get("dropout"):
        given: Any = others
        told: dict[str, Any] = arguments
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, *given, **told)
        return found
    scaling = arguments.get("scaling")
    scale = float(scaling) if isinstance(scaling, float | int) else query.shape[-1] ** -0.5
    parts = [_of_block(block, query, (key, value), scale=scale) for block in blocks]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _of_block(block: Block, query: Tensor, kept: tuple[Tensor, Tensor], *, scale: float) -> Tensor:
    """``[1, H, stop - start, D]``; the query heads of a key-value head are computed together."""
    key, value = (part.index_select(2, block.keys_S) for part in kept)
    num_heads, num_groups, nodes = query.shape[1], key.shape[1], block.stop - block.start
    share = num_heads // num_groups
    found = nn.functional.scaled_dot_product_attention(
        query[:, :, block.start : block.stop].reshape(1, num_groups, share * nodes, -1),
        key,
        value,
        attn_mask=block.bias(share),
        scale=scale,
    )
    return found.reshape(1, num_heads, nodes, -1)


AttentionInterface.register("sdpa", attend)
