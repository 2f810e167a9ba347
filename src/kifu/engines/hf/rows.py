"""How many rows a product may have on this machine, so that no row's numbers depend on how many others there are.

Matrix kernels choose by the number of rows how the sum of a row is split. With AVX-512 on an Intel CPU, float32
products of 8 rows differ in the last bit from those of 16 and more; with AMX, bfloat16 products of up to 32 rows differ
from those of 40 to 160, and some of 192 from both. No such table can be complete, so it is measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MULTIPLE = 8
"""Products have a multiple of this many rows."""
FEW = 64
"""A range that begins above this wastes more on padding than it gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Numbers of rows between which the same row has the same numbers."""

    least: int
    most: int

    def padding(self, count: int) -> int:
        """Rows to add to ``count``, of at most ``most``."""
        return max(self.least - count, -count % MULTIPLE)


def measure_rows(compute: Callable[[int], Tensor], sizes: Sequence[int]) -> Rows:
    """The widest range of ``sizes`` between which ``compute`` agrees with itself.

    Args:
        compute: the numbers of the same few rows, bit for bit comparable, in a product of so many rows altogether.
        sizes: ascending multiples of `MULTIPLE`; sizes between two that agree are taken to agree as well.
    """
    found = [compute(size) for size in sizes]
    ranges: list[Rows] = []
    first = 0
    for at in range(1, len(sizes) + 1):
        if at == len(sizes) or not torch.equal(found[at], found[first]):
            ranges.append(Rows(least=sizes[first], most=sizes[at - 1]))
            first = at
    small = [each for each in ranges if each.least <= FEW]
    return max(small, key=lambda each: each.most) if small else ranges[0]
