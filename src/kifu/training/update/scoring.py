"""Logprobs of whole records under weights that did not sample them: a frozen reference, or the step's first weights.

Axes: ``N`` trained tokens of one trajectory, tape after tape.
"""

from collections.abc import Iterable

import numpy as np

from kifu.batching import PackedBatch, pack_rows
from kifu.errors import EngineFailure
from kifu.policy import BatchScorer, Engine
from kifu.records import Floats, Trajectory, as_floats
from kifu.training.update.assemble import bare_rows


def scorer_of(engine: Engine) -> BatchScorer[PackedBatch]:
    """The engine's trainer as one that scores.

    Raises:
        EngineFailure: it cannot.
    """
    if not isinstance(engine.trainer, BatchScorer):
        raise EngineFailure(
            f"the method needs logprobs under a reference, and the trainer {type(engine.trainer).__name__} gives none; "
            "implement `hold` and `logprobs` (kifu.policy.BatchScorer), or choose a method without a reference"
        )
    return engine.trainer


def score_records(
    trajectories: Iterable[Trajectory], *, engine: Engine, max_nodes: int, reference: bool
) -> dict[str, Floats]:
    """``[N]`` nats by trajectory, at the recorded temperature and support.

    Args:
        trajectories: records; one without a trained token gives an empty array.
        engine: whose trainer scores.
        max_nodes: largest number of nodes of one forward.
        reference: under the held reference instead of the present weights.
    """
    items = list(trajectories)
    found: dict[str, list[Floats]] = {item.id: [] for item in items}
    rows = [row for item in items for row in bare_rows(item)]
    batches = pack_rows(rows, layout=engine.layout, max_nodes=max_nodes)
    parts = [scorer_of(engine).logprobs(batch, reference=reference) for batch in batches]
    scores = np.concatenate(parts) if parts else as_floats([])
    ends = np.cumsum([row.positions.size for row in rows])
    for row, end in zip(rows, ends.tolist(), strict=True):
        found[row.trajectory].append(scores[end - row.positions.size : end])
    return {name: as_floats(np.concatenate([*mine, as_floats([])])) for name, mine in found.items()}
