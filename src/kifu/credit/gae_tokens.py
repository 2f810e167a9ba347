"""Generalized advantage estimation over tokens: observations skipped, in two levels, and across contexts.

All three need a critic that values the state before every sampled token (`TurnFacts.values_N`).

Axes: ``K`` turns, ``N`` trained tokens of one turn or one context, ``T`` positions with observations, ``S`` contexts.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kifu.credit.arrays import Doubles, Numbers, as_doubles, check_gamma
from kifu.credit.episode import Episode
from kifu.errors import ArgumentError


def token_gae(rewards_N: Numbers, values_N: Numbers, *, gamma: float, lam: float, final_value: float = 0.0) -> Doubles:
    """``[N]`` advantage of every token.

    delta_n = r_n + gamma V_{n+1} - V_n,   A_n = delta_n + gamma lam A_{n+1},   V_N = final_value
    """
    r_N, v_N = as_doubles(rewards_N, name="rewards"), as_doubles(values_N, name="values")
    if r_N.size != v_N.size:
        raise ArgumentError(f"{v_N.size} values for {r_N.size} rewards; every token needs both")
    check_gamma(gamma)
    _check_lam(lam)
    advantage_N = np.empty_like(r_N)
    following, next_value = 0.0, final_value
    for n in range(r_N.size - 1, -1, -1):
        following = r_N[n] + gamma * next_value - v_N[n] + gamma * lam * following
        advantage_N[n], next_value = following, v_N[n]
    return advantage_N


def skip_observation_gae(
    rewards_T: Numbers,
    values_T: Numbers,
    mask_T: npt.NDArray[np.bool_],
    *,
    gamma: float,
    lam: float,
    final_value: float = 0.0,
) -> Doubles:
    """``[T]`` advantage of every sampled token as if observations were not there (SAO, arXiv 2607.07508); 0 on them.

    A sampled token's successor is the next sampled token, so that neither gamma lam nor a critic's value of tool output
    stands between an action and what it led to. What the arrays hold at observations is not looked at.

    Args:
        rewards_T: reward after each token.
        values_T: V before each token.
        mask_T: True where the policy sampled.
        gamma: discount of one sampled token.
        lam: decay of the residuals per sampled token.
        final_value: worth of what follows: 0 after a true end.
    """
    kept_T = np.asarray(mask_T, dtype=np.bool_)
    rewards, values = np.asarray(rewards_T, dtype=np.float64), np.asarray(values_T, dtype=np.float64)
    if not kept_T.shape == rewards.shape == values.shape:
        raise ArgumentError(f"{kept_T.size} mask entries, {rewards.size} rewards and {values.size} values must align")
    found_T = np.zeros(kept_T.size)
    found_T[kept_T] = token_gae(rewards[kept_T], values[kept_T], gamma=gamma, lam=lam, final_value=final_value)
    return found_T


def episode_token_gae(episode: Episode, *, gamma: float, lam: float) -> tuple[Doubles, ...]:
    """``[K][N]`` `token_gae` over all sampled tokens of an episode; a turn's reward is paid at its last token."""
    values_KN = token_values(episode)
    rewards_N = np.concatenate([np.empty(0), *paid_at_last_tokens(episode.rewards_K, lengths_K=_lengths(values_KN))])
    values_N = np.concatenate([np.empty(0), *values_KN])
    found_N = token_gae(rewards_N, values_N, gamma=gamma, lam=lam, final_value=episode.boundary)
    return _split(found_N, _lengths(values_KN))


def bilevel_gae(
    rewards_K: Numbers,
    values_KN: Sequence[Doubles],
    *,
    gamma: float,
    lam: float,
    turn_gamma: float,
    turn_lam: float,
    final_value: float = 0.0,
) -> tuple[Doubles, ...]:
    """``[K][N]`` advantages over turn ends, then over the tokens of each turn (VAGEN, arXiv 2510.16907).

        over turn ends e_k:  delta_k = r_k + turn_gamma V(e_{k+1}) - V(e_k)
                             A_k = delta_k + turn_gamma turn_lam A_{k+1}
        inside turn k:       GAE with the reward A_k + V(e_k) at the last token and nothing after it

    Turn ends are given by the shape of ``values_KN``. The released function finds them by their reward being nonzero: a
    turn of reward 0 is then merged with the next, and a last turn of reward 0 is an IndexError.

    Args:
        rewards_K: reward of each turn.
        values_KN: V before each token of each turn; V(e_k) is that of the turn's last token.
        gamma: discount of one token.
        lam: decay per token.
        turn_gamma: discount of one turn.
        turn_lam: decay per turn.
        final_value: worth of what follows the last turn: 0 after a true end.
    """
    r_K = as_doubles(rewards_K, name="rewards")
    if r_K.size != len(values_KN):
        raise ArgumentError(f"values of {len(values_KN)} turns for {r_K.size} rewards")
    lengths_K = _lengths(values_KN)
    spoken = [k for k, length in enumerate(lengths_K) if length]
    paid_K = [float(paid.sum()) for paid in paid_at_last_tokens(r_K, lengths_K=lengths_K)]
    ends = np.array([values_KN[k][-1] for k in spoken])
    rewards = [paid_K[k] for k in spoken]
    above = token_gae(rewards, ends, gamma=turn_gamma, lam=turn_lam, final_value=final_value) + ends
    found_KN = [np.empty(0) for _ in lengths_K]
    for k, worth in zip(spoken, above, strict=True):
        rewards_N = np.zeros(lengths_K[k])
        rewards_N[-1] = worth
        found_KN[k] = token_gae(rewards_N, values_KN[k], gamma=gamma, lam=lam)
    return tuple(found_KN)


def cross_segment_gae(local_SN: Sequence[Doubles], *, gamma: float, lam: float) -> tuple[Doubles, ...]:
    """``[S][N]`` advantages of contexts that follow each other (CompactionRL, arXiv 2607.05378).

    A_{s,n} = (gamma lam)^{N_{>s}} A^local_{s,n}     N_{>s} the sampled tokens of all later contexts
    """
    check_gamma(gamma)
    _check_lam(lam)
    sizes = [local.size for local in local_SN]
    return tuple((gamma * lam) ** sum(sizes[s + 1 :]) * local for s, local in enumerate(local_SN))


def compaction_gae(episode: Episode, *, gamma: float, lam: float) -> tuple[Doubles, ...]:
    """``[K][N]`` GAE inside every context of an episode, then `cross_segment_gae`.

    What other contexts are paid counts at the token before it: a context ends with the sum of all rewards paid after
    it, and for one reward at the end every context has that reward. Contexts follow each other in the order in which
    they end; one that is left and taken up again ends with its last turn.
    """
    values_KN = token_values(episode)
    lengths_K = _lengths(values_KN)
    paid_KN = paid_at_last_tokens(episode.rewards_K, lengths_K=lengths_K)
    last = {turn.segment: k for k, turn in enumerate(episode.turns)}
    members = [
        [k for k, turn in enumerate(episode.turns) if turn.segment == segment]
        for segment in sorted(last, key=last.__getitem__)
    ]
    local: list[Doubles] = []
    for turns in members:
        rewards_N = np.concatenate([paid_KN[k] for k in turns])
        ends = np.cumsum([lengths_K[k] for k in turns]).tolist()
        for end, k, following in zip(ends, turns, [*turns[1:], len(paid_KN)], strict=True):
            if end:
                rewards_N[end - 1] += sum(float(paid_N.sum()) for paid_N in paid_KN[k + 1 : following])
        values_N = np.concatenate([values_KN[k] for k in turns])
        after = episode.boundary if turns[-1] == len(paid_KN) - 1 else 0.0
        local.append(token_gae(rewards_N, values_N, gamma=gamma, lam=lam, final_value=after))
    found_KN = [np.empty(0) for _ in lengths_K]
    for turns, whole_N in zip(members, cross_segment_gae(local, gamma=gamma, lam=lam), strict=True):
        for k, part_N in zip(turns, _split(whole_N, [lengths_K[k] for k in turns]), strict=True):
            found_KN[k] = part_N
    return tuple(found_KN)


def length_lambda(length: int, *, scale: float = 1.5) -> float:
    """``lam = 1 - 1 / (scale l)``: the residuals of a long sequence decay slowlier; 0 where that would be negative."""
    if length < 0 or not scale > 0:
        raise ArgumentError(f"lam from a length needs length >= 0 and scale > 0, found {length} and {scale}")
    return max(0.0, 1.0 - 1.0 / (scale * length)) if length else 0.0


def token_values(episode: Episode) -> tuple[Doubles, ...]:
    """``[K][N]`` V before every trained token.

    Raises:
        ArgumentError: a turn has no values, or not one a token.
    """
    found: list[Doubles] = []
    for at, turn in enumerate(episode.facts("values_N")):
        values_N = as_doubles(() if turn.values_N is None else turn.values_N, name="values_N")
        if values_N.size != turn.num_tokens:
            raise ArgumentError(f"{episode.place(at)}: {values_N.size} `value`s for {turn.num_tokens} tokens")
        found.append(values_N)
    return tuple(found)


def paid_at_last_tokens(rewards_K: Numbers, *, lengths_K: Sequence[int]) -> tuple[Doubles, ...]:
    """``[K][N]`` rewards over tokens: each turn's at its last one.

    What a turn without tokens is paid goes to the last token before it; before the first token it is nobody's doing.
    """
    found = [np.zeros(length) for length in lengths_K]
    last: Doubles | None = None
    for reward, tokens_N in zip(rewards_K, found, strict=True):
        last = tokens_N if tokens_N.size else last
        if last is not None:
            last[-1] += reward
    return tuple(found)


def _lengths(values_KN: Sequence[Doubles]) -> list[int]:
    return [values_N.size for values_N in values_KN]


def _split(found_N: Doubles, lengths_K: Sequence[int]) -> tuple[Doubles, ...]:
    return tuple(np.split(found_N, np.cumsum(lengths_K)[:-1])) if lengths_K else ()


def _check_lam(lam: float) -> None:
    if not 0.0 <= lam <= 1.0:
        raise ArgumentError(f"lam must lie in [0, 1], found {lam}")
