"""Advantages scaled by how uncertain the policy was about the token.

Axes: ``G`` members of a group, ``K`` turns of one of them, ``N`` trained tokens of a turn.
"""

from collections.abc import Sequence

import numpy as np

from kifu.credit.arrays import Doubles


def entropy_scaled(
    advantages_G: Sequence[float], entropies_GKN: Sequence[Sequence[Doubles]], *, weight: float, eps: float = 1e-8
) -> list[list[Doubles]]:
    """``[G][K][N]`` the member's advantage times a factor of the token's entropy (AEPO).

        A_t = A (1 + weight (H_t - mean H) / (std H + eps))        A where all entropies are equal

    Mean and sample standard deviation are over all trained tokens of the group, those that branches share once for each
    member that holds them.
    """
    every = np.concatenate([np.zeros(0), *(entropies_N for member in entropies_GKN for entropies_N in member)])
    mean = float(every.mean()) if every.size else 0.0
    spread = float(every.std(ddof=1)) if every.size > 1 else 0.0
    divisor = spread + eps if spread else 1.0
    return [
        [advantage * (1.0 + weight * (entropies_N - mean) / divisor) for entropies_N in member]
        for advantage, member in zip(advantages_G, entropies_GKN, strict=True)
    ]
