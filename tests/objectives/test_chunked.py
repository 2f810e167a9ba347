"""Chunked log-probabilities against whole logits, values and gradients, and a count of what is held."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives import Head, entropy_of, support_logprobs
from kifu.records import Bools, Support, SupportKind, as_ints

V, D = 60, 7
BITMAP: Bools = np.arange(V) % 3 == 0
SUPPORTS: list[Support | None] = [
    None,
    Support.of([3, 9, 12]),
    Support(kind=SupportKind.NOT_IDS, ids=as_ints([0, 1, 5])),
    Support(kind=SupportKind.MASK, ids=as_ints([]), mask="bitmap"),
    Support.of([9, 30]),
    None,
    Support.of(list(range(1, 40))),
]
TOKENS = [4, 9, 7, 33, 30, 0, 21]


def _kept(support: Support | None) -> Bools:
    if support is None:
        return np.ones(V, dtype=np.bool_)
    if support.kind is SupportKind.MASK:
        return BITMAP
    kept = np.zeros(V, dtype=np.bool_)
    kept[support.ids] = True
    return kept if support.kind is SupportKind.IDS else np.logical_not(kept)


def _problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Head, Tensor, Tensor]:
    make = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(len(TOKENS), D, generator=make, dtype=dtype, requires_grad=True)
    weight_VD = torch.randn(V, D, generator=make, dtype=dtype, requires_grad=True)
    bias_V = torch.randn(V, generator=make, dtype=dtype, requires_grad=True)
    temperature_N = torch.tensor([0.6, 1.0, 1.3, 1.0, 0.8, 1.0, 2.0], dtype=dtype)
    return hidden_ND, Head(weight_VD=weight_VD, bias_V=bias_V), torch.tensor(TOKENS), temperature_N


def _whole(hidden_ND: Tensor, head: Head, temperature_N: Tensor, supports: Sequence[Support | None]) -> Tensor:
    assert head.bias_V is not None
    logits_NV = (hidden_ND @ head.weight_VD.T + head.bias_V) / temperature_N[:, None]
    kept_NV = torch.tensor(np.stack([_kept(support) for support in supports]))
    return logits_NV.masked_fill(~kept_NV, -torch.inf).log_softmax(-1)


def _gradients(head: Head, hidden_ND: Tensor) -> list[Tensor]:
    assert head.bias_V is not None
    leaves = [hidden_ND, head.weight_VD, head.bias_V]
    found = [leaf.grad.clone() for leaf in leaves if leaf.grad is not None]
    for leaf in leaves:
        leaf.grad = None
    assert len(found) == 3
    return found


@pytest.mark.parametrize("chunk", [1, 2, 100])
@pytest.mark.parametrize("narrow_only", [False, True])
def test_values_and_gradients_are_those_of_whole_logits(chunk: int, narrow_only: bool) -> None:
    """Every kind of support at mixed temperatures, in chunks of any size."""
    chosen = [1, 4] if narrow_only else list(range(len(TOKENS)))
    hidden_ND, head, token_N, temperature_N = _problem()
    supports = [SUPPORTS[at] for at in chosen]
    mix_N = torch.linspace(-1, 2, len(chosen), dtype=torch.float64)

    expected_NV = _whole(hidden_ND[chosen], head, temperature_N[chosen], supports)
    expected_N, surprise_N = expected_NV.gather(1, token_N[chosen, None])[:, 0], entropy_of(expected_NV)
    ((expected_N + 0.3 * surprise_N) * mix_N).sum().backward()
    expected = _gradients(head, hidden_ND)

    logp_N, entropy_N = support_logprobs(
        hidden_ND[chosen],
        head,
        token_N=token_N[chosen],
        temperature_N=temperature_N[chosen],
        supports=supports,
        bitmaps={"bitmap": BITMAP},
        needs_entropy=True,
        chunk=chunk,
    )
    assert entropy_N is not None
    ((logp_N + 0.3 * entropy_N) * mix_N).sum().backward()

    torch.testing.assert_close(logp_N, expected_N, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy_N, surprise_N, rtol=1e-12, atol=1e-12)
    for one, other in zip(_gradients(head, hidden_ND), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_logits_are_never_wider_than_a_chunk_nor_kept_for_the_backward_pass() -> None:
    """Sizes of all tensors autograd saves, and of every product with the head."""
    count, chunk = 64, 8
    hidden_ND = torch.randn(count, D, requires_grad=True)
    head = Head(weight_VD=torch.randn(V, D, requires_grad=True))
    saved: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logp_N, _ = support_logprobs(
            hidden_ND,
            head,
            token_N=torch.zeros(count, dtype=torch.int64),
            temperature_N=torch.ones(count),
            supports=[None] * count,
            chunk=chunk,
        )
    assert logp_N.shape == (count,)
    assert max(saved, default=0) < chunk * V


def test_narrow_supports_use_only_their_rows_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the head outside the union may hold nan."""
    hidden_ND, head, token_N, temperature_N = _problem()
    with torch.no_grad():
        outside = [v for v in range(V) if v not in (3, 9, 12, 30)]
        head.weight_VD[outside] = float("nan")
    logp_N, _ = support_logprobs(
        hidden_ND[[1, 4]],
        head,
        token_N=token_N[[1, 4]],
        temperature_N=temperature_N[[1, 4]],
        supports=[SUPPORTS[1], SUPPORTS[4]],
    )
    assert bool(torch.isfinite(logp_N).all())


def test_half_precision_is_normalized_in_float32() -> None:
    """bfloat16 hidden states and head, float32 answers."""
    hidden_ND, head, token_N, temperature_N = _problem(torch.bfloat16)
    logp_N, _ = support_logprobs(
        hidden_ND,
        head,
        token_N=token_N,
        temperature_N=temperature_N,
        supports=SUPPORTS,
        bitmaps={"bitmap": BITMAP},
    )
    assert logp_N.dtype == torch.float32


def test_scoring_without_gradients_gives_the_same_numbers() -> None:
    """Under no_grad nothing is recomputed and nothing differs."""
    hidden_ND, head, token_N, temperature_N = _problem()
    settings: dict[str, Any] = {
        "token_N": token_N,
        "temperature_N": temperature_N,
        "supports": SUPPORTS,
        "bitmaps": {"bitmap": BITMAP},
    }
    with torch.no_grad():
        plain_N, _ = support_logprobs(hidden_ND, head, **settings)
    traced_N, _ = support_logprobs(hidden_ND, head, **settings)
    assert torch.equal(plain_N, traced_N.detach())


def test_no_occurrences_give_no_numbers() -> None:
    """An empty micro-batch can still be differentiated."""
    hidden_ND = torch.zeros(0, D, requires_grad=True)
    logp_N, entropy_N = support_logprobs(
        hidden_ND,
        Head(weight_VD=torch.zeros(V, D)),
        token_N=torch.zeros(0, dtype=torch.int64),
        temperature_N=torch.zeros(0),
        supports=[],
        needs_entropy=True,
    )
    logp_N.sum().backward()
    assert entropy_N is not None
    assert (logp_N.shape, entropy_N.shape) == ((0,), (0,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_N": torch.tensor([1])}, "1 tokens"),
        ({"token_N": torch.tensor([4, 10, 7, 33, 30, 0, 21])}, "occurrence 1: token 10 is outside its own support"),
        ({"token_N": torch.tensor([60, 9, 7, 33, 30, 0, 21])}, "occurrence 0: token 60 is outside the head"),
        ({"bitmaps": {}}, "occurrence 3: bitmap bitmap is not in the table"),
        ({"bitmaps": {"bitmap": BITMAP[:5]}}, "occurrence 3: bitmap bitmap has shape"),
        ({"temperature_N": torch.zeros(7)}, "temperatures must be > 0"),
        ({"chunk": 0}, "chunk must be at least 1"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    """With the number of the occurrence where there is one."""
    hidden_ND, head, token_N, temperature_N = _problem()
    settings: dict[str, Any] = {
        "token_N": token_N,
        "temperature_N": temperature_N,
        "supports": SUPPORTS,
        "bitmaps": {"bitmap": BITMAP},
    }
    with pytest.raises(ArgumentError, match=message):
        support_logprobs(hidden_ND, head, **(settings | change))
