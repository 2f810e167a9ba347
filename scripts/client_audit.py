"""What a recorded client is audited against: the sampler as a witness, and the sampler's own probabilities.

Axes: ``T`` tokens of a context, ``N`` tokens of a turn.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kifu.policy import Generation, Request, Sampler, ScoreRequest, Scores, Weights
from kifu.records import Origin, Trajectory, as_ints, placed_spans


@dataclass(eq=False)
class Witness:
    """Implements `Sampler` by another one and remembers what was asked and what was written."""

    sampler: Sampler
    seen: list[tuple[tuple[int, ...], Generation]] = field(default_factory=list)
    """Context ``[T]`` and turn ``[N]`` of each call."""

    @property
    def version(self) -> int:
        """Of the sampler's weights."""
        return self.sampler.version

    async def sample(self, request: Request) -> Generation:
        """Continue one context."""
        made = await self.sampler.sample(request)
        self.seen.append((tuple(request.token_ids.tolist()), made))
        return made

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Score under the sampler's weights."""
        return await self.sampler.score(requests)

    async def load(self, weights: Weights) -> None:
        """Hand weights on."""
        await self.sampler.load(weights)

    def release(self, context: str) -> None:
        """Hand the name on."""
        self.sampler.release(context)

    def problems(self, record: Trajectory) -> list[str]:
        """Where the tokens to train on differ from those that were sampled: twice, never, or after another prefix."""
        wanted: Counter[tuple[tuple[int, ...], int]] = Counter()
        for context, made in self.seen:
            ids = made.token_ids.tolist()
            for at, token in enumerate(ids):
                if made.sampled[at]:
                    wanted[(*context, *ids[:at]), token] += 1
        held: Counter[tuple[tuple[int, ...], int]] = Counter()
        for placed in placed_spans(record, origin=Origin.POLICY):
            ids = record.tape_ids(placed.tape).tolist()
            for at in range(placed.start, placed.stop):
                held[tuple(ids[:at]), ids[at]] += 1
        extra, missing = held - wanted, wanted - held
        found = [f"token {token} after {len(prefix)} others was not sampled there" for prefix, token in extra]
        return found + [f"token {token} after {len(prefix)} others is not on record" for prefix, token in missing]


async def largest_error(sampler: Sampler, record: Trajectory) -> float:
    """Largest distance, in nats, between a recorded logprob and the one the same weights give now; 0 for no token."""
    errors = [0.0]
    for placed in placed_spans(record, origin=Origin.POLICY):
        span = placed.span
        assert span.sampling is not None
        assert span.logprobs is not None
        request = ScoreRequest(
            token_ids=as_ints(record.tape_ids(placed.tape)[: placed.stop]),
            positions=as_ints(np.arange(placed.start, placed.stop)),
            sampling=span.sampling,
            support=span.support,
        )
        scores = (await sampler.score([request]))[0]
        errors.append(float(np.abs(scores.logprobs - span.logprobs).max()))
    return max(errors)
