"""Log-probabilities and entropies over recorded supports, without ever holding the logits of a whole batch.

Axes: ``N`` occurrences, ``C`` occurrences of one chunk, ``D`` hidden size, ``V`` vocabulary, ``U`` columns of the head
that are computed: the whole vocabulary, or the union of the narrow supports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kifu.errors import ArgumentError
from kifu.records import Bools, Support, SupportKind

NARROW_SHARE = 0.25
"""Largest share of the vocabulary that the union of narrow supports may hold and still be computed apart."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """The output layer of a language model."""

    weight_VD: Tensor
    bias_V: Tensor | None = None


def support_logprobs(
    hidden_ND: Tensor,
    head: Head,
    *,
    token_N: Tensor,
    temperature_N: Tensor,
    supports: Sequence[Support | None],
    bitmaps: Mapping[str, Bools] | None = None,
    needs_entropy: bool = False,
    chunk: int = 256,
) -> tuple[Tensor, Tensor | None]:
    """How likely each token was in its own support at its own temperature.

        log p(y_n) = z_n[y_n] / T_n - log sum_{v in support_n} exp(z_n[v] / T_n),    z_n = W h_n + b

    Occurrences whose support lists few ids use only those rows of the head. All others go through the whole vocabulary
    a chunk at a time, and their logits are computed again in the backward pass instead of being kept. Logits are formed
    in the dtype of hidden states and head and normalized in at least float32.

    Args:
        hidden_ND: last hidden state at the position that predicts each token; carries the gradient.
        head: the output layer; carries the gradient.
        token_N: int64 ids.
        temperature_N: as recorded, > 0.
        supports: ``[N]`` as recorded; None is the whole vocabulary.
        bitmaps: ``[V]`` bool by digest, for supports of kind MASK.
        needs_entropy: whether to compute the entropy as well.
        chunk: occurrences whose logits exist at one time. Buffers of more than 32 MiB go back to the system at once;
            smaller ones can scatter over glibc's heap, so a smaller chunk may need more memory, not less.

    Returns:
        ``[N]`` nats and, when asked for, ``[N]`` entropy in nats of the same distribution.

    Raises:
        ArgumentError: a token outside its support, a bitmap that is missing, or lengths that differ.
    """
    count = hidden_ND.shape[0]
    _check(count, head, token_N=token_N, temperature_N=temperature_N, supports=supports, chunk=chunk)
    narrow, union_U = _narrow(supports, head.weight_VD.shape[0])
    index = {"narrow": np.flatnonzero(narrow), "wide": np.flatnonzero(~narrow)}
    parts: list[tuple[Tensor, Tensor | None]] = []
    for kind, rows in index.items():
        if not rows.size:
            continue
        columns_U = union_U if kind == "narrow" else None
        small = _select(head, columns_U)
        for start in range(0, rows.size, chunk):
            chosen = rows[start : start + chunk]
            masks = _Masks(
                rows=chosen, supports=[supports[row] for row in chosen], columns_U=columns_U, bitmaps=bitmaps or {}
            )
            at_C = torch.as_tensor(chosen, device=hidden_ND.device)
            found = checkpoint(
                _chunk_logprobs,
                hidden_ND[at_C],
                small,
                column_C=_place(token_N[at_C], columns_U),
                temperature_C=temperature_N[at_C],
                masks=masks,
                needs_entropy=needs_entropy,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            parts.append(found)
    order = np.argsort(np.concatenate([index["narrow"], index["wide"]]), kind="stable")
    return _ordered(parts, order, like=hidden_ND, needs_entropy=needs_entropy)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Masks:
    """Builds a chunk's kept sets when they are needed, so that none is kept between forward and backward."""

    rows: npt.NDArray[np.int64]
    supports: list[Support | None]
    columns_U: npt.NDArray[np.int64] | None
    bitmaps: Mapping[str, Bools]

    def build(self, width: int) -> Bools:
        """``[C, U]`` True where a token can be sampled."""
        kept_CU = np.ones((len(self.supports), width), dtype=np.bool_)
        for at, support in enumerate(self.supports):
            if support is None:
                continue
            match support.kind:
                case SupportKind.IDS:
                    ids = support.ids if self.columns_U is None else np.searchsorted(self.columns_U, support.ids)
                    kept_CU[at] = False
                    kept_CU[at, ids] = True
                case SupportKind.NOT_IDS:
                    kept_CU[at, support.ids] = False
                case SupportKind.MASK:
                    kept_CU[at] = self._bitmap(support, width, int(self.rows[at]))
        return kept_CU

    def _bitmap(self, support: Support, width: int, row: int) -> Bools:
        found = self.bitmaps.get(support.mask or "")
        if found is None or found.shape != (width,):
            what = "is not in the table" if found is None else f"has shape {found.shape}"
            raise ArgumentError(f"occurrence {row}: bitmap {support.mask} {what}; the head has {width} rows")
        return found


def _chunk_logprobs(
    hidden_CD: Tensor, head: Head, *, column_C: Tensor, temperature_C: Tensor, masks: _Masks, needs_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    logits_CU = functional.linear(hidden_CD, head.weight_VD, head.bias_V)
    wide = torch.promote_types(logits_CU.dtype, torch.float32)
    scaled_CU = logits_CU.to(wide) / temperature_C.to(wide)[:, None]
    kept_CU = None
    if any(support is not None for support in masks.supports):
        kept_CU = torch.as_tensor(masks.build(scaled_CU.shape[1]), device=scaled_CU.device)
        scaled_CU = scaled_CU.masked_fill(~kept_CU, -torch.inf)
    logp_CU = scaled_CU.log_softmax(-1)
    logp_C = logp_CU.gather(1, column_C[:, None])[:, 0]
    if not needs_entropy:
        return logp_C, None
    finite_CU = logp_CU if kept_CU is None else logp_CU.masked_fill(~kept_CU, 0.0)
    return logp_C, -(logp_CU.exp() * finite_CU).sum(-1)


def _check(
    count: int,
    head: Head,
    *,
    token_N: Tensor,
    temperature_N: Tensor,
    supports: Sequence[Support | None],
    chunk: int,
) -> None:
    lengths = {len(token_N), len(temperature_N), len(supports), count}
    if len(lengths) > 1:
        raise ArgumentError(
            f"{count} hidden states, {len(token_N)} tokens, {len(temperature_N)} temperatures, {len(supports)} supports"
        )
    if chunk < 1:
        raise ArgumentError(f"chunk must be at least 1 occurrence, found {chunk}")
    if not bool((temperature_N > 0).all()):
        raise ArgumentError("temperatures must be > 0; tokens taken greedily cannot be trained by a ratio")
    size = head.weight_VD.shape[0]
    for row, (token, support) in enumerate(zip(token_N.tolist(), supports, strict=True)):
        if not 0 <= token < size:
            raise ArgumentError(f"occurrence {row}: token {token} is outside the head's {size} rows")
        if support is not None and support.contains(token) is False:
            raise ArgumentError(f"occurrence {row}: token {token} is outside its own support; the record is wrong")


def _narrow(supports: Sequence[Support | None], size: int) -> tuple[Bools, npt.NDArray[np.int64]]:
    narrow = np.array([item is not None and item.kind is SupportKind.IDS for item in supports], dtype=np.bool_)
    listed = [item.ids for item in supports if item is not None and item.kind is SupportKind.IDS]
    union_U = np.unique(np.concatenate(listed)).astype(np.int64) if listed else np.zeros(0, dtype=np.int64)
    if union_U.size > NARROW_SHARE * size:
        narrow[:] = False
    return narrow, union_U


def _select(head: Head, columns_U: npt.NDArray[np.int64] | None) -> Head:
    if columns_U is None:
        return head
    at_U = torch.as_tensor(columns_U, device=head.weight_VD.device)
    return Head(weight_VD=head.weight_VD[at_U], bias_V=None if head.bias_V is None else head.bias_V[at_U])


def _place(token_C: Tensor, columns_U: npt.NDArray[np.int64] | None) -> Tensor:
    if columns_U is None:
        return token_C
    return torch.searchsorted(torch.as_tensor(columns_U, device=token_C.device), token_C)


def _ordered(
    parts: list[tuple[Tensor, Tensor | None]], order: npt.NDArray[np.int64], *, like: Tensor, needs_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    if not parts:
        empty_N = like.sum(-1)
        return empty_N, empty_N if needs_entropy else None
    at_N = torch.as_tensor(order, device=like.device)
    logp_N = torch.cat([logp for logp, _ in parts])[at_N]
    if not needs_entropy:
        return logp_N, None
    return logp_N, torch.cat([entropy for _, entropy in parts if entropy is not None])[at_N]
