"""Attention over kept keys and values, for token rows of many contexts at once.

transformers calls `attend` in place of its own attention (its public attention interface); the model itself is not
changed. The rows of one forward belong to different contexts and positions; a `Layout` says which.

Axes: ``R`` token rows of one forward, ``P`` pieces of a bucket, ``T`` tokens of a piece (padded to the bucket), ``H``
query heads, ``K`` key-value heads, ``Q`` query rows per key-value head, ``M`` visible keys, ``D`` head size.

A row's numbers depend on its own context only. Matrix kernels split a sum by its length, so the number of visible keys
follows from the row's own position (the next multiple of `STRETCH`) and never from its neighbours; they treat few rows
differently from many, so no kernel is given fewer than `LEAST_QUERIES`, and a forward has as many rows as were measured
to make no difference (`kifu.engines.hf.rows`). A chunk that crosses a multiple is cut there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from kifu.engines.hf.kept import Kept
from kifu.engines.hf.rows import Rows

NAME = "kifu_rows"
LEAST_QUERIES = 4
"""Query rows per key-value head a piece is padded to at least."""
STRETCH = 128
"""Keys are visible in multiples of this many."""
GAPS = 2.0
"""Slots in a range, relative to those used, up to which the range is read in place instead of copied."""
PLAIN = frozenset(
    {"sliding_window", "dropout", "scaling", "is_causal", "position_ids", "use_cache", "output_attentions"}
)
"""Arguments of an attention call that are understood here; any other one that is set is refused."""


class UnsupportedAttentionError(Exception):
    """The model asks for attention this module does not compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Consecutive tokens of one context, to be forwarded."""

    slot: int
    start: int
    """Position of the first token; everything before it is already kept."""
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Part of a feed whose rows see the same number of keys."""

    slot: int
    start: int
    length: int
    row: int
    """Row of the forward that holds its first token."""
    least: int
    """Tokens it is padded to at least."""

    @property
    def visible(self) -> int:
        return (self.start // STRETCH + 1) * STRETCH

    @property
    def width(self) -> int:
        return max(self.least, 1 << (self.length - 1).bit_length())


def _pieces(feed: Feed, row: int, *, least: int) -> list[_Piece]:
    start, end, found = feed.start, feed.start + len(feed.token_ids), []
    while start < end:
        cut = min(end, (start // STRETCH + 1) * STRETCH)
        at = row + start - feed.start
        found.append(_Piece(slot=feed.slot, start=start, length=cut - start, row=at, least=least))
        start = cut
    return found


@dataclass(slots=True, kw_only=True, eq=False)
class _Bucket:
    """Pieces of about equal length that see equally many keys."""

    slots: slice | Tensor
    rows_PT: Tensor
    """Row of the forward for every query."""
    positions_PT: Tensor
    visible: int
    sources: Tensor
    """Queries (flat in P, T) that are real ..."""
    targets: Tensor
    """... and the rows they answer."""
    biases: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    def bias(self, window: int | None, share: int, dtype: torch.dtype) -> Tensor:
        """``[P, 1, Q, M]`` 0 where a key is visible, -inf elsewhere."""
        if (window, share) not in self.biases:
            keys_M = torch.arange(self.visible, device=self.rows_PT.device)
            last = self.positions_PT[:, :, None]
            hidden = keys_M > last
            if window is not None:
                hidden |= keys_M <= last - window
            bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -math.inf)
            self.biases[window, share] = bias[:, None].repeat(1, 1, share, 1)
        return self.biases[window, share]


class Layout:
    """Which context and position every token row of one forward belongs to."""

    def __init__(self, feeds: Sequence[Feed], kept: Kept, rows: Rows) -> None:
        device = kept.device
        self.kept = kept
        self.num_rows = sum(len(feed.token_ids) for feed in feeds)
        padding = rows.padding(self.num_rows)
        lengths = [len(feed.token_ids) for feed in feeds]
        positions = np.concatenate([np.arange(feed.start, feed.start + len(feed.token_ids)) for feed in feeds])
        ids = np.concatenate([np.asarray(feed.token_ids, dtype=np.int64) for feed in feeds])
        self.slots = torch.from_numpy(np.repeat([feed.slot for feed in feeds], lengths)).to(device)
        self.positions = torch.from_numpy(positions).to(device)
        self.input_ids = torch.from_numpy(np.pad(ids, (0, padding))).to(device)[None]
        self.position_ids = torch.from_numpy(np.pad(positions, (0, padding))).to(device)[None]
        firsts = np.cumsum([0, *lengths])
        self.last_rows = firsts[1:] - 1
        self.firsts = firsts[:-1]
        groups: dict[tuple[int, int], list[_Piece]] = {}
        least = 1 << (-(-LEAST_QUERIES // kept.share) - 1).bit_length()
        for feed, first in zip(feeds, firsts[:-1], strict=True):
            for piece in _pieces(feed, int(first), least=least):
                groups.setdefault((piece.visible, piece.width), []).append(piece)
        self.buckets = [self._bucket(sorted(groups[key], key=lambda piece: piece.slot)) for key in sorted(groups)]

    def _bucket(self, pieces: list[_Piece]) -> _Bucket:
        width, device = pieces[0].width, self.kept.device
        low, high = pieces[0].slot, pieces[-1].slot + 1
        in_place = high - low <= GAPS * len(pieces)
        count = high - low if in_place else len(pieces)
        rows, positions = np.zeros((count, width), dtype=np.int64), np.zeros((count, width), dtype=np.int64)
        sources: list[int] = []
        targets: list[int] = []
        for at, piece in enumerate(pieces):
            place = piece.slot - low if in_place else at
            steps = np.minimum(np.arange(width), piece.length - 1)
            rows[place], positions[place] = piece.row + steps, piece.start + steps
            sources.extend(range(place * width, place * width + piece.length))
            targets.extend(range(piece.row, piece.row + piece.length))
        chosen = slice(low, high) if in_place else torch.tensor([piece.slot for piece in pieces], device=device)
        return _Bucket(
            slots=chosen,
            rows_PT=torch.from_numpy(rows).to(device),
            positions_PT=torch.from_numpy(positions).to(device),
            visible=pieces[0].visible,
            sources=torch.tensor(sources, device=device),
            targets=torch.tensor(targets, device=device),
        )


def attend(module: nn.Module, query: Tensor, *others: Tensor | None, **arguments: object) -> tuple[Tensor, None]:
    """Keep the rows' keys and values, then answer each row from its own context.

    Args:
        module: the attention layer; its ``layer_idx`` names the store.
        query: ``[1, H, R, D]``.
        *others: ``[1, K, R, D]`` keys, ``[1, K, R, D]`` values, and a mask that is never given: what a row sees
            follows from the layout.
        **arguments: what the model passes; ``layout`` is ours.
    """
    layout = arguments.pop("layout", None)
    key, value, *masks = others
    odd = [name for name, given in arguments.items() if name not in PLAIN and given is not None]
    if not isinstance(layout, Layout) or key is None or value is None or odd or any(m is not None for m in masks):
        raise UnsupportedAttentionError(f"{type(module).__name__}: mask or arguments {odd} are not understood")
    scaling, window = arguments.get("scaling"), arguments.get("sliding_window")
    scale = float(scaling) if isinstance(scaling, float | int) else query.shape[-1] ** -0.5
    count = layout.num_rows
    keys, values = layout.kept.layer(
        _layer_of(module), num_groups=key.shape[1], key_size=key.shape[3], value_size=value.shape[3]
    )
    keys[layout.slots, :, layout.positions] = key[0, :, :count].transpose(0, 1)
    values[layout.slots, :, layout.positions] = value[0, :, :count].transpose(0, 1)
    query_RHD = query[0].transpose(0, 1)
    out_RHD = query_RHD.new_zeros(query_RHD.shape[0], query_RHD.shape[1], value.shape[3])
    window = int(window) if isinstance(window, int) else None
    share = query.shape[1] // key.shape[1]
    for bucket in layout.buckets:
        found = _bucket_attention(
            query_RHD[bucket.rows_PT],
            keys[bucket.slots, :, : bucket.visible],
            values[bucket.slots, :, : bucket.visible],
            bias=bucket.bias(window, share, query.dtype),
            scale=scale,
        )
        out_RHD[bucket.targets] = found[bucket.sources]
    return out_RHD[None], None


def _layer_of(module: nn.Module) -> int:
    found = getattr(module, "layer_idx", None)
    if not isinstance(found, int):
        raise UnsupportedAttentionError(f"{type(module).__name__} has no layer_idx")
    return found


def _bucket_attention(
    query_PTHD: Tensor, key_PKMD: Tensor, value_PKMD: Tensor, *, bias: Tensor, scale: float
) -> Tensor:
    """``[P * T, H, D]`` softmax attention, the heads of a key-value group computed together."""
    num_pieces, width, num_heads, size = query_PTHD.shape
    num_groups = key_PKMD.shape[1]
    share = num_heads // num_groups
    query = query_PTHD.view(num_pieces, width, num_groups, share, size).permute(0, 2, 3, 1, 4)
    query_PKQD = query.reshape(num_pieces, num_groups, share * width, size)
    found = nn.functional.scaled_dot_product_attention(query_PKQD, key_PKMD, value_PKMD, attn_mask=bias, scale=scale)
    found = found.view(num_pieces, num_groups, share, width, -1).permute(0, 3, 1, 2, 4)
    return found.reshape(num_pieces * width, num_heads, -1)


AttentionInterface.register(NAME, attend)
