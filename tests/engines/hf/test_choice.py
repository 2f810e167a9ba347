"""Choosing a token: against torch's transforms, and by counting."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.engines.hf.choice import as_support, choose, kept_ids, logprob_of
from kifu.objectives import log_distribution
from kifu.records import Sampling, SupportKind, as_ints


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([None, 1, 4, 50]),
    top_p=st.sampled_from([None, 0.4, 0.9]),
    min_p=st.sampled_from([None, 0.05, 0.5]),
)
def test_kept_set_and_logprob_are_those_of_the_learner(
    seed: int, temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    """The learner's own transform, in float64, is the oracle."""
    logits = np.random.default_rng(seed).normal(0, 3, 40).astype(np.float32)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    wanted = log_distribution(
        torch.from_numpy(logits)[None].double(), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )

    found = choose(logits, None, sampling=sampling, u=0.37)

    kept = np.flatnonzero(wanted.kept_NV[0].numpy())
    assert kept.tolist() == (list(range(40)) if found.kept is None else found.kept.tolist())
    logp = wanted.logp_NV[0].numpy()
    assert found.logprob == pytest.approx(logp[found.token_id], abs=1e-9)
    assert found.entropy == pytest.approx(-(np.exp(logp[kept]) * logp[kept]).sum(), abs=1e-9)


def test_uniform_grid_reproduces_the_probabilities() -> None:
    """Inverse CDF over an even grid of u: each id is taken as often as its probability says."""
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4])).astype(np.float32)
    ids = as_ints([3, 5, 8, 13])

    taken = [choose(logits, ids, sampling=Sampling(), u=(k + 0.5) / 1000).token_id for k in range(1000)]

    assert [taken.count(token) for token in (3, 5, 8, 13)] == [100, 200, 300, 400]


def test_greedy_takes_the_lower_of_equal_ids_and_reports_temperature_one() -> None:
    """Two equal maxima."""
    found = choose(np.array([0.0, 2.0, 2.0], dtype=np.float32), None, sampling=Sampling(temperature=None), u=0.99)

    assert found.token_id == 1
    assert found.logprob == pytest.approx(2 - np.log(1 + 2 * np.exp(2)))


@pytest.mark.parametrize(
    ("kept", "kind"),
    [(range(4), SupportKind.IDS), (range(4, 1000), SupportKind.NOT_IDS), (range(0, 1000, 2), SupportKind.MASK)],
)
def test_support_takes_the_smallest_form_and_comes_back(kept: range, kind: SupportKind) -> None:
    """Few kept, few excluded, neither."""
    support, bitmap = as_support(as_ints(list(kept)), 1000)

    assert support is not None
    assert support.kind is kind
    assert (bitmap is not None) is (kind is SupportKind.MASK)
    table = {support.mask: bitmap} if support.mask is not None and bitmap is not None else {}
    back = kept_ids(support, 1000, table)
    assert back is not None
    assert back.tolist() == list(kept)


def test_whole_vocabulary_needs_no_support() -> None:
    """Nothing was excluded."""
    assert as_support(None, 10) == (None, None)
    assert as_support(as_ints(range(10)), 10) == (None, None)


def test_logprob_of_is_the_softmax() -> None:
    """Written out for two candidates."""
    logprob, entropy = logprob_of(np.array([0.0, 1.0], dtype=np.float32), 0, 0.5)

    p = 1 / (1 + np.exp(2.0))
    assert logprob == pytest.approx(np.log(p))
    assert entropy == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p))
