"""Preferences between two texts, by how likely they are under the policy: DPO and relatives without a reward model.

Axes: ``N`` occurrences of tokens of both sides, ``P`` pairs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kifu.errors import ArgumentError
from kifu.objectives.contract import Loss, Terms


class _Sides(NamedTuple):
    """What the two sides of every pair add up to."""

    chosen_P: Tensor
    """Sum over the preferred side's tokens."""
    rejected_P: Tensor
    num_chosen_P: Tensor
    num_rejected_P: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceObjective:
    """``- log sigma(beta margin)`` per pair, optionally with a likelihood term on the preferred side.

        margin = sum over y+ of (log pi - log ref)  -  sum over y- of (log pi - log ref)       log ref = 0 without one
        L = sum_p w_p (- log sigma(beta_p margin_p) + likelihood * mean over y+_p of - log pi)
        beta_p = beta / max(|y+|, |y-|)^length_power

    With a reference and neither power nor likelihood this is DPO (Rafailov et al., 2023, eq. 7). A pair whose other
    side is absent has no preference term.
    """

    beta: float = 0.1
    reference: bool = True
    """Whether log-probabilities are taken relative to the frozen reference."""
    length_power: float = 0.0
    preference: float = 1.0
    """Factor of the preference term."""
    likelihood: float = 0.0
    """Factor of the likelihood term; 0 leaves it out."""

    def __post_init__(self) -> None:
        if not 0.0 < self.beta < float("inf"):
            raise ArgumentError(
                f"beta must be finite and > 0, found {self.beta}: it scales the log-odds of a preference"
            )

    @property
    def needs_entropy(self) -> bool:
        """Never."""
        return False

    def __call__(self, terms: Terms) -> Loss:
        """Sum the loss over the pairs of the micro-batch.

        Raises:
            ArgumentError: no pairs, or no reference where one is asked for.
        """
        if terms.pair_N is None:
            raise ArgumentError("a preference needs pairs, and the batch holds none")
        if self.reference and terms.reference_logp_N is None:
            raise ArgumentError("the preference is relative to a reference, and the batch holds no logprobs under one")
        kept_N, pair_N = terms.weight_N != 0, terms.pair_N
        logp_N = torch.where(kept_N, terms.logp_N, 0.0)
        anchor_N = torch.zeros_like(logp_N) if not self.reference else terms.reference_logp_N
        assert anchor_N is not None
        relative_N = logp_N - torch.where(kept_N, anchor_N, 0.0)
        sums = _sides(relative_N, kept_N, terms)
        counted_P = (sums.num_chosen_P + sums.num_rejected_P).clamp(min=1.0)
        weight_P = logp_N.new_zeros(sums.chosen_P.shape).index_add(0, pair_N, terms.weight_N) / counted_P
        longest_P = torch.maximum(sums.num_chosen_P, sums.num_rejected_P).clamp(min=1.0)
        margin_P = sums.chosen_P - sums.rejected_P
        both_P = (sums.num_chosen_P > 0) & (sums.num_rejected_P > 0)
        term_P = torch.where(both_P, -logsigmoid(self.beta / longest_P**self.length_power * margin_P), 0.0)
        preference = self.preference * (weight_P * term_P).sum()
        mean_P = -_sides(logp_N, kept_N, terms).chosen_P / sums.num_chosen_P.clamp(min=1.0)
        likelihood = self.likelihood * (weight_P * mean_P).sum()
        with torch.no_grad():
            stats = {
                "tokens": kept_N.sum(),
                "pairs": both_P.sum(),
                "preferred_pairs": (both_P & (margin_P > 0)).sum(),
                "margin_sum": margin_P[both_P].sum(),
                "chosen_logp_sum": sums.chosen_P.sum(),
                "loss_preference": preference.detach(),
                "loss_likelihood": likelihood.detach(),
            }
        return Loss(total=preference + likelihood, stats=stats)


def _sides(values_N: Tensor, kept_N: Tensor, terms: Terms) -> _Sides:
    assert terms.pair_N is not None
    pair_N = terms.pair_N
    count = int(pair_N.max()) + 1 if pair_N.numel() else 0
    is_chosen_N, is_rejected_N = kept_N & (terms.advantage_N > 0), kept_N & (terms.advantage_N < 0)

    def added(of_N: Tensor) -> Tensor:
        return values_N.new_zeros(count).index_add(0, pair_N, of_N)

    return _Sides(
        chosen_P=added(torch.where(is_chosen_N, values_N, 0.0)),
        rejected_P=added(torch.where(is_rejected_N, values_N, 0.0)),
        num_chosen_P=added(is_chosen_N.to(values_N.dtype)),
        num_rejected_P=added(is_rejected_N.to(values_N.dtype)),
    )
