"""A sampler that says what it is told: for tests, demonstrators and checks of other rooms."""

from collections.abc import Callable, Sequence

import numpy as np

from kifu.policy.contracts import Generation, Request, ScoreRequest, Scores, Weights
from kifu.records.tokens import as_floats, as_ints
from kifu.records.turns import Finish

Script = Callable[[Request], Sequence[int]]


class ScriptedSampler:
    """Implements `Sampler`. Each call's ids come from ``script``; every token gets the same made-up logprob.

    Args:
        script: from the request to the ids of the turn, stop token included.
        logprob: nats given to every token.
    """

    def __init__(self, script: Script, *, logprob: float = -1.0) -> None:
        self._script = script
        self._logprob = logprob
        self.version = 0

    async def sample(self, request: Request) -> Generation:
        """Return the script's ids, cut at ``max_new_tokens``."""
        ids = list(self._script(request))[: request.max_new_tokens]
        stopped = bool(ids) and ids[-1] in request.sampling.stop_ids
        return Generation(
            token_ids=as_ints(ids),
            sampled=np.ones(len(ids), dtype=np.bool_),
            logprobs=as_floats([self._logprob] * len(ids)),
            policy_version=self.version,
            finish=Finish.STOP if stopped else Finish.LENGTH,
            sampling=request.sampling,
        )

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Give every token the made-up logprob."""
        return [
            Scores(
                logprobs=as_floats([self._logprob] * request.positions.size),
                entropy=as_floats([0.0] * request.positions.size),
            )
            for request in requests
        ]

    async def load(self, weights: Weights) -> None:
        """Take the version number."""
        self.version = weights.version

    def release(self, context: str) -> None:
        """Nothing is kept."""
