"""From what the model makes of a prefix to the next token, and to the probability of a recorded one.

Everything here is float64 and one row at a time: nothing depends on who else is being served.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kifu.engines.recurrent.prefixes import Prefix
from kifu.errors import EngineFailure
from kifu.objectives import log_distribution, support_of
from kifu.policy import inverse_cdf
from kifu.records import Ints, Sampling, Support, SupportKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choices:
    """The distribution of one next token. Axis ``S``: tokens that can be sampled."""

    ids: npt.NDArray[np.int64]
    """``[S]`` increasing."""
    logprobs: npt.NDArray[np.float64]
    """``[S]`` nats."""
    entropy: float
    """Nats."""
    support: Support | None
    greedy: int
    """Index of the most likely; of equals, the lower id."""

    def pick(self, u: float | None) -> int:
        """Index of the token at ``u`` of the cumulative distribution; None takes the most likely."""
        return self.greedy if u is None else inverse_cdf(np.exp(self.logprobs), u)


def choices(prefix: Prefix, sampling: Sampling, allowed: Ints | None) -> Choices:
    """The distribution after ``prefix``, kept with it: contexts that share the prefix share the answer.

    Greedy sampling is described by the distribution at temperature 1 over all allowed tokens.
    """
    greedy = sampling.temperature is None
    cuts = (None, None, None) if greedy else (sampling.top_k, sampling.top_p, sampling.min_p)
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    key = (temperature, cuts, None if allowed is None else allowed.tobytes())
    known = prefix.answers.get(key)
    if known is None:
        known = prefix.answers[key] = _choices(_logits(prefix), temperature, cuts=cuts, allowed=allowed)
    assert isinstance(known, Choices)
    return known


def _logits(prefix: Prefix) -> npt.NDArray[np.float64]:
    assert prefix.logits is not None, "the prefix was not fed"
    return prefix.logits.astype(np.float64)


def _choices(
    logits_V: npt.NDArray[np.float64],
    temperature: float,
    *,
    cuts: tuple[int | None, float | None, float | None],
    allowed: Ints | None,
) -> Choices:
    allowed_V = None
    if allowed is not None:
        if allowed.min() < 0 or allowed.max() >= logits_V.size:
            raise EngineFailure(
                f"the constraint allows ids {allowed.min()} to {allowed.max()}, the vocabulary has {logits_V.size}"
            )
        allowed_V = torch.zeros(logits_V.size, dtype=torch.bool)
        allowed_V[torch.from_numpy(allowed.astype(np.int64))] = True
    top_k, top_p, min_p = cuts
    found = log_distribution(
        torch.from_numpy(logits_V)[None],
        temperature=temperature,
        allowed_NV=None if allowed_V is None else allowed_V[None],
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
    )
    kept_V = found.kept_NV[0].numpy()
    ids = np.flatnonzero(kept_V)
    logprobs = np.minimum(found.logp_NV[0].numpy()[ids], 0.0)
    return Choices(
        ids=ids,
        logprobs=logprobs,
        entropy=_entropy(logprobs),
        support=support_of(found.kept_NV[0]),
        greedy=int(np.argmax(logprobs)),
    )


def score_token(prefix: Prefix, token: int, *, temperature: float, support: Support | None) -> tuple[float, float]:
    """Log-probability of ``token`` after ``prefix`` and the entropy there, nats, over a recorded support.

    Raises:
        EngineFailure: a token outside its support or the vocabulary, or a support this engine never writes.
    """
    logits_V = _logits(prefix)
    kept_V = _kept(support, logits_V.size)
    if not 0 <= token < logits_V.size or not kept_V[token]:
        raise EngineFailure(f"token {token} cannot be scored: it is outside its support or the {logits_V.size} ids")
    scaled_V = np.where(kept_V, logits_V / temperature, -np.inf)
    scaled_V -= scaled_V.max()
    logp_V = scaled_V - np.log(np.exp(scaled_V).sum())
    return min(0.0, float(logp_V[token])), _entropy(logp_V[kept_V])


def _kept(support: Support | None, size: int) -> npt.NDArray[np.bool_]:
    if support is None:
        return np.ones(size, dtype=np.bool_)
    if support.kind is SupportKind.MASK:
        raise EngineFailure("the recurrent engine writes supports as ids, found a bitmap: was this recorded elsewhere?")
    kept_V: npt.NDArray[np.bool_] = np.full(size, support.kind is SupportKind.NOT_IDS)
    kept_V[support.ids] = support.kind is SupportKind.IDS
    return kept_V


def _entropy(logprobs: npt.NDArray[Any]) -> float:
    finite = logprobs[np.isfinite(logprobs)]
    return float(-(np.exp(finite) * finite).sum())
