"""Rewards of RLHF: a learned score at the end, and on the way the price of leaving the reference.

Axes: ``K`` turns, ``N`` sampled tokens of one turn.
"""

import numpy as np

from kifu.credit.arrays import Doubles
from kifu.credit.episode import Episode
from kifu.errors import ArgumentError


def anchored_rewards(episode: Episode, *, beta: float) -> Doubles:
    """``[K]`` reward of every turn (Ouyang et al., 2022, eq. 2; k1 inside the reward).

        r_k = - beta sum over the turn's tokens of (log pi - log ref)     plus the reward model's score in the last turn

    log pi is that of the policy that sampled, so the penalty is a number and no gradient flows through it.

    Raises:
        ArgumentError: the score, or the logprobs of a turn under policy or reference, are absent.
    """
    if episode.model_score is None:
        raise ArgumentError(f"{episode.place()}: the method needs `model_score`; no reward model scored the attempt")
    episode.facts("logprobs_N"), episode.facts("reference_logprobs_N")
    found_K = np.zeros(episode.num_turns)
    for at, turn in enumerate(episode.turns):
        assert turn.logprobs_N is not None
        assert turn.reference_logprobs_N is not None
        found_K[at] = -beta * float((turn.logprobs_N - turn.reference_logprobs_N).sum())
    if found_K.size:
        found_K[-1] += episode.model_score
    return found_K
