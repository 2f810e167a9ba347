"""Truncation against a plain-Python reading of the documented order, and transformers' own processors."""

from math import exp, inf, log, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.errors import ArgumentError
from kifu.objectives import log_distribution, support_of
from kifu.records import SupportKind

LOGITS = st.lists(st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0]), min_size=2, max_size=9)


def _by_hand(
    logits: list[float],
    allowed: list[bool],
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
) -> dict[int, float]:
    """Probabilities by id, one documented step after the other."""
    weight = {v: exp(z / temperature) for v, z in enumerate(logits) if allowed[v]}
    ranked = sorted(weight, key=lambda v: (-logits[v], v))
    if top_k is not None:
        ranked = ranked[:top_k]
    if top_p is not None:
        total, mass = sum(weight[v] for v in ranked), 0.0
        kept: list[int] = []
        for v in ranked:
            if kept and mass >= top_p:
                break
            kept.append(v)
            mass += weight[v] / total
        ranked = kept
    if min_p is not None:
        ranked = [v for v in ranked if weight[v] >= min_p * weight[ranked[0]]]
    total = sum(weight[v] for v in ranked)
    return {v: weight[v] / total for v in ranked}


@settings(max_examples=200)
@given(
    logits=LOGITS,
    forbidden=st.sets(st.integers(0, 8)),
    temperature=st.sampled_from([0.6, 1.0, 1.3]),
    top_k=st.none() | st.integers(1, 10),
    top_p=st.none() | st.sampled_from([0.013, 0.31, 0.537, 0.913, 0.9991]),
    min_p=st.none() | st.sampled_from([0.0, 0.0513, 0.3117]),
)
def test_the_kept_set_and_its_probabilities_follow_the_documented_order(
    logits: list[float],
    forbidden: set[int],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
) -> None:
    """Ties included: of equals the lower id is kept."""
    allowed = [v not in forbidden for v in range(len(logits))]
    if not any(allowed):
        return
    found = log_distribution(
        torch.tensor([logits], dtype=torch.float64),
        temperature=temperature,
        allowed_NV=torch.tensor([allowed]),
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
    )
    expected = _by_hand(logits, allowed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert set(torch.nonzero(found.kept_NV[0])[:, 0].tolist()) == set(expected)
    for v, logp in enumerate(found.logp_NV[0].tolist()):
        assert logp == (pytest.approx(log(expected[v]), abs=1e-9) if v in expected else -inf)


def test_nothing_in_force_is_the_plain_softmax() -> None:
    """In float32 and with rows of their own."""
    logits_NV = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    found = log_distribution(logits_NV, temperature=1.3)
    torch.testing.assert_close(found.logp_NV, (logits_NV / 1.3).log_softmax(-1))
    assert found.kept_NV.all()


def test_a_tiny_temperature_leaves_the_argmax_and_no_nan() -> None:
    """The maximum is subtracted before dividing."""
    found = log_distribution(torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64), temperature=1e-308)
    assert found.logp_NV[0].exp().tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Bit for bit, with every truncation in force."""
    logits_NV = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    together = log_distribution(logits_NV, temperature=0.7, top_k=20, top_p=0.9, min_p=0.01)
    for row in range(6):
        alone = log_distribution(logits_NV[row : row + 1], temperature=0.7, top_k=20, top_p=0.9, min_p=0.01)
        assert torch.equal(alone.logp_NV[0], together.logp_NV[row])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 1.0}, "min_p"),
    ],
)
def test_settings_outside_their_domain_are_named(setting: dict[str, float], message: str) -> None:
    """The field is in the message."""
    with pytest.raises(ArgumentError, match=message):
        log_distribution(torch.zeros(1, 3), **setting)  # type: ignore[arg-type]


def test_a_row_nobody_may_continue_is_named() -> None:
    """By its number."""
    with pytest.raises(ArgumentError, match="row 1"):
        log_distribution(torch.zeros(2, 3), allowed_NV=torch.tensor([[True, True, True], [False, False, False]]))
    with pytest.raises(ArgumentError, match="row 0: the largest allowed logit is nan"):
        log_distribution(torch.tensor([[nan, 0.0]]))


def test_a_kept_set_is_written_in_its_smaller_form() -> None:
    """Few kept: their ids. Few excluded: those. All kept: nothing."""
    few = support_of(torch.tensor([True, False, False, False, True]))
    most = support_of(torch.tensor([True, True, False, True]))
    assert few is not None
    assert most is not None
    assert (few.kind, few.ids.tolist()) == (SupportKind.IDS, [0, 4])
    assert (most.kind, most.ids.tolist()) == (SupportKind.NOT_IDS, [2])
    assert support_of(torch.ones(3, dtype=torch.bool)) is None
