"""The token model as a process: the state is the prefix, an action appends a token, the end token is terminal.

Axes: ``S`` states, ``A`` tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from kifu.errors import ArgumentError
from kifu.lab.mdp import FiniteMdp


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenProcess:
    """A token process and what its states stand for."""

    mdp: FiniteMdp
    prefixes_S: tuple[tuple[int, ...] | None, ...]
    """Prefix of every state; None is the state after the end."""


def token_process(
    *, vocabulary: int, end: int, max_tokens: int, reward: Callable[[tuple[int, ...]], float], judge: str = "verifier"
) -> TokenProcess:
    """Build the process ``s' = s || a``: deterministic, undiscounted, rewarded once, for the whole string.

    A string ends with ``end`` or when it has ``max_tokens`` tokens, which is a limit of the task. Seen from outside it
    is a bandit whose action is the whole string: ``J = sum_y pi(y | x) r(x, y)``.

    Args:
        vocabulary: number of tokens.
        end: the token after which the state is terminal.
        max_tokens: longest string, end token included.
        reward: of a whole string.
        judge: who computes the reward; the process itself does not.
    """
    if not 0 <= end < vocabulary or max_tokens < 1:
        raise ArgumentError(
            f"the end token lies in the vocabulary and a string has a token, found end {end} of {vocabulary} tokens "
            f"and max_tokens {max_tokens}"
        )
    inner = [token for token in range(vocabulary) if token != end]
    live = [prefix for length in range(max_tokens) for prefix in product(inner, repeat=length)]
    index = {prefix: at for at, prefix in enumerate(live)}
    over = len(live)
    transition_SAS = np.zeros((over + 1, vocabulary, over + 1))
    reward_SAS = np.zeros_like(transition_SAS)
    for prefix, at in index.items():
        for token in range(vocabulary):
            string = (*prefix, token)
            after = index.get(string, over)
            transition_SAS[at, token, after] = 1.0
            if after == over:
                reward_SAS[at, token, over] = reward(string)
    mdp = FiniteMdp(
        transition_SAS=transition_SAS,
        reward_SAS=reward_SAS,
        start_S=np.eye(over + 1)[0],
        terminal_S=np.arange(over + 1) == over,
        gamma=1.0,
        reward_source=judge,
    )
    return TokenProcess(mdp=mdp, prefixes_S=(*live, None))
