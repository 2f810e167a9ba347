"""How many rows a product may have on this machine, so that no row's numbers depend on how many others there are.

Matrix kernels choose by the number of rows how the sum of a row is split. With AVX-512 on an Intel CPU, float32
products of 8 rows differ in the last bit from those of 16 and more; with AMX, bfloat16 products of up to 32 rows differ
from those of 40 to 160, other shapes have other limits, and some have holes between them. No such table can be
complete, so it is measured, for every shape of product that a model has.

Axes: ``R`` rows, ``I`` inputs.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

SIZES = (*range(8, 129, 8), 160, 192, 224, 256)
"""Numbers of rows that are tried."""
TYPICAL = (8, 16, 32, 64, 96, 128, 256)
"""Rows that are pending together; a choice of sizes is judged by what it makes of these."""
PER_FORWARD = 16
"""What a forward costs beside its rows, in rows."""
SEED = 20_260_101


@dataclass(frozen=True, slots=True)
class Rows:
    """Numbers of rows among which the same row has the same numbers, ascending."""

    sizes: tuple[int, ...]

    @property
    def most(self) -> int:
        """More rows than this are several forwards."""
        return self.sizes[-1]

    def padding(self, count: int) -> int:
        """Rows to add to ``count``, of at most ``most``, for the next of the sizes."""
        return self.sizes[bisect_left(self.sizes, count)] - count

    def cost(self, count: int) -> int:
        """Of so many rows, in rows."""
        whole, rest = divmod(count, self.most)
        return whole * (self.most + PER_FORWARD) + (rest + self.padding(rest) + PER_FORWARD if rest else 0)

    def __str__(self) -> str:
        return ", ".join(map(str, self.sizes))


ALL = Rows(SIZES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product to be tried: what computes it, and rows to compute."""

    compute: Callable[[Tensor], Tensor]
    """``[1, R, I]`` to ``[1, R, O]``."""
    rows_RI: Tensor


def products_of(whole: nn.Module, *, leave: Sequence[nn.Parameter] = ()) -> list[Product]:
    """One for every kind and shape of linear layer, with as many random rows as the largest of `SIZES`.

    A kernel that splits its sums otherwise changes about one in twenty thousand bfloat16 numbers, since they are
    rounded afterwards; the rows give a hundred thousand numbers and more.

    Args:
        whole: the model.
        leave: weights of layers that are not computed by the forward.
    """
    found: dict[object, Product] = {}
    left = {id(parameter) for parameter in leave}
    for layer in whole.modules():
        if not isinstance(layer, nn.Linear | Conv1D) or id(layer.weight) in left:
            continue
        kind = (type(layer), layer.weight.shape, layer.weight.dtype)
        if kind not in found:
            inputs = layer.weight.shape[0 if isinstance(layer, Conv1D) else 1]
            found[kind] = Product(compute=layer, rows_RI=random_rows(SIZES[-1], inputs, like=layer.weight))
    return list(found.values())


def random_rows(count: int, size: int, *, like: Tensor) -> Tensor:
    """``[R, I]`` standard normal numbers, the same every time."""
    generator = torch.Generator().manual_seed(SEED + size)
    return torch.randn(count, size, generator=generator).to(device=like.device, dtype=like.dtype)


def measure_rows(products: Sequence[Product], sizes: Sequence[int]) -> Rows:
    """The sizes among which every product agrees with itself, bit for bit; of several such sets the cheapest.

    Nothing about the time it takes is measured: the choice must be the same in the next process.

    Args:
        products: each with at least as many rows as the largest size.
        sizes: ascending; no other number of rows will be used.
    """
    classes: dict[tuple[int, ...], list[int]] = {}
    with torch.inference_mode():
        kinds = [list(_kinds(product, sizes)) for product in products]
    for at, size in enumerate(sizes):
        classes.setdefault(tuple(kind[at] for kind in kinds), []).append(size)
    sets = [Rows(tuple(found)) for found in classes.values()]
    return min(sets, key=lambda rows: (sum(rows.cost(count) for count in TYPICAL), rows.sizes))


def _kinds(product: Product, sizes: Sequence[int]) -> Iterator[int]:
    """For every size which of the results so far it gives."""
    seen: list[Tensor] = []
    for size in sizes:
        found = _in_chunks(product, size)
        at = next((at for at, other in enumerate(seen) if torch.equal(found, other)), len(seen))
        if at == len(seen):
            seen.append(found)
        yield at


def _in_chunks(product: Product, size: int) -> Tensor:
    rows_RI = product.rows_RI
    count = rows_RI.shape[0]
    starts = [*range(0, count - size + 1, size), *([count - size] if count % size else [])]
    parts = [product.compute(rows_RI[None, start : start + size])[0] for start in starts]
    if count % size:
        parts[-1] = parts[-1][size - count % size :]
    return torch.cat(parts)
