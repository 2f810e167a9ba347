"""Seed ranges of the splits of generated tasks, and a rule that keeps the tasks themselves apart.

Ranges of seeds alone do not keep splits disjoint where a world has few different tasks: two seeds may draw the same
one. So every task also belongs to a share, by a digest of what makes it up, and a split takes only tasks of its own
share.
"""

import hashlib
from collections.abc import Mapping

from kifu.errors import UsageError, nearest

SPLITS: Mapping[str, range] = {
    "train": range(5_000_000),
    "held_out": range(5_000_000, 9_000_000),
    "new_vocabulary": range(9_000_000, 10_000_000),
    "demonstration": range(10_000_000, 30_000_000),
}
"""Seeds of each split. ``demonstration``: examples in prompts and traces for supervised fine-tuning."""

_SHARES: Mapping[str, range] = {"train": range(12), "held_out": range(12, 15), "demonstration": range(15, 16)}


def split_range(split: str, seed: int) -> range:
    """Seeds from ``seed`` to the end of the split's range.

    Raises:
        UsageError: the split is unknown, or the seed belongs to another one.
    """
    if split not in SPLITS:
        raise UsageError(f"no split `{split}`; {nearest(split, list(SPLITS))}")
    seeds = SPLITS[split]
    if seed not in seeds:
        raise UsageError(f"split `{split}` has seeds {seeds.start} to {seeds.stop - 1}, found {seed}")
    return range(seed, seeds.stop)


def in_share(split: str, content: str) -> bool:
    """Whether a task made up of ``content`` may stand in ``split``; splits with a vocabulary of their own take all."""
    if split not in _SHARES:
        return True
    return hashlib.sha256(content.encode()).digest()[0] % 16 in _SHARES[split]
