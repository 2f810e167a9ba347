"""Credit of turns from how likely the gold answer became.

The gold answer is scored in a request of its own after every prefix; it never stands in the policy's context.

Axes: ``K`` turns, ``T`` transitions between scored prefixes (one prefix more than transitions).
"""

import numpy as np

from kifu.credit.arrays import Doubles, Numbers, as_doubles, check_gamma
from kifu.credit.episode import Episode
from kifu.errors import ArgumentError


def log_gap_progress(gold_logprobs: Numbers, *, eps: float) -> Doubles:
    """``[T]`` progress of every transition (TRACE, arXiv 2607.13988).

        d_k = eps - l_k,   delta_k = log(d_k / d_{k+1})

    They telescope to ``log(d_0 / d_T)``.

    Args:
        gold_logprobs: ``[T + 1]`` l_k, nats, mean over the gold answer's tokens given prefix k.
        eps: > 0; keeps the gap of a certain answer from 0.
    """
    logprobs = _logprobs(gold_logprobs)
    if not eps > 0:
        raise ArgumentError(f"eps must be > 0, found {eps}")
    gaps = eps - logprobs
    found_T: Doubles = np.log(gaps[:-1] / gaps[1:])
    return found_T


def window_credit(
    progress_T: Numbers, *, window: int, gamma: float, outcome: float = 0.0, fill: float | None = None
) -> Doubles:
    """``[T]`` discounted mean of the progress of the next transitions.

        h = min(k + window - 1, T - 1),   c_k = sum_{u=k}^{h} gamma^{u-k} delta_u / sum_{u=k}^{h} gamma^{u-k}
        where the window reaches the last transition: c_k += fill gamma^{T-k} outcome

    Args:
        progress_T: delta of each transition.
        window: how many transitions are looked at, >= 1.
        gamma: discount of one transition.
        outcome: advantage of the trajectory's outcome; only the fill reads it.
        fill: weight of the outcome at the end; None leaves it out.
    """
    delta_T = as_doubles(progress_T, name="progress")
    check_gamma(gamma)
    if window < 1:
        raise ArgumentError(f"the window holds at least 1 transition, found {window}")
    count = delta_T.size
    found_T = np.empty(count)
    for k in range(count):
        seen = delta_T[k : k + window]
        weights = np.power(gamma, np.arange(seen.size))
        found_T[k] = (weights @ seen) / weights.sum()
        if fill is not None and k + window >= count:
            found_T[k] += fill * gamma ** (count - k) * outcome
    return found_T


def tool_turn_logprobs(episode: Episode) -> Doubles:
    """``[T + 1]`` the gold answer's log-probability before each turn that calls a tool, and after the last of them.

    The end of the last is the prefix before the next turn, or the end of the episode. Turns without a call are no
    transition of their own: what happens there belongs to the tool turn before them.

    Raises:
        ArgumentError: a prefix that is needed was not scored.
    """
    tools = [at for at, turn in enumerate(episode.turns) if turn.calls_tool]
    found: list[float] = []
    for at in [*tools, tools[-1] + 1] if tools else []:
        is_end = at == len(episode.turns)
        logprob = episode.final_gold_logprob if is_end else episode.turns[at].gold_logprob
        if logprob is None:
            raise episode.lacking("final_gold_logprob" if is_end else "gold_logprob", turn=None if is_end else at)
        found.append(logprob)
    return as_doubles(found, name="gold log-probabilities")


def information_gain(gold_logprobs: Numbers) -> Doubles:
    """``[T]`` ``exp(l_{k+1}) - exp(l_k)``: what a transition added to the probability of the gold answer (IGPO)."""
    found_T: Doubles = np.diff(np.exp(_logprobs(gold_logprobs)))
    return found_T


def _logprobs(gold_logprobs: Numbers) -> Doubles:
    logprobs = as_doubles(gold_logprobs, name="gold log-probabilities")
    if not logprobs.size:
        raise ArgumentError("progress needs the gold answer scored after at least one prefix")
    if float(logprobs.max()) > 0:
        raise ArgumentError(f"a mean log-probability of the gold answer is at most 0 nats, found {logprobs.max()}")
    return logprobs
