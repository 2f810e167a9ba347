"""Estimators of a divergence from single samples (names k1, k2, k3 after Schulman's note of 2020).

With y sampled from p and ``d = log p(y) - log q(y)``:

    k1 = d                    unbiased for KL(p || q), can be negative
    k2 = d^2 / 2              biased, never negative
    k3 = exp(-d) - 1 + d      unbiased for KL(p || q), never negative

As a loss on p's own parameters, with samples from p held fixed, only the value is estimated as above; the gradients are
others: E[grad k1] = 0 (it is a score), E[grad k2] = grad KL(p || q), E[grad k3] = grad KL(q || p). So a penalty inside
the loss is k2 or k3, and k1 belongs into the reward. Samples from an older policy bias all of them.

Axes: ``N`` occurrences of sampled tokens.
"""

from typing import Literal, TypeAlias, assert_never

from torch import Tensor

Estimator: TypeAlias = Literal["k1", "k2", "k3"]


def kl_estimate(*, logp_N: Tensor, other_logp_N: Tensor, estimator: Estimator) -> Tensor:
    """``[N]`` one-sample estimate of KL(p || q) per token, nats.

    Args:
        logp_N: log p of the tokens, under the distribution they were sampled from.
        other_logp_N: log q of the same tokens, normalized over the same support.
        estimator: which of the three.
    """
    difference_N = logp_N - other_logp_N
    match estimator:
        case "k1":
            return difference_N
        case "k2":
            return difference_N.square() / 2
        case "k3":
            return (-difference_N).expm1() + difference_N
        case _ as unreachable:
            assert_never(unreachable)
