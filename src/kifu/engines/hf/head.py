"""Logits from hidden states, for the rows and the candidates that are asked about and no others.

Axes: ``N`` rows, ``D`` hidden size, ``V`` vocabulary, ``S`` candidates of one row.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from kifu.engines.hf.rows import SIZES, Product, measure_rows, random_rows
from kifu.records import Ints

FEW = 256
"""Candidates up to which a row's logits are computed one by one."""
ROWS_AT_ONCE = 64
"""Rows whose whole logits exist at one time."""

Logits = npt.NDArray[np.float32]


class Head:
    """The output layer in float32, whatever dtype the model computes in."""

    def __init__(self, weight_VD: Tensor) -> None:
        self._weight_VD = weight_VD
        self.refresh()
        probe = Product(
            compute=self._product, rows_RI=random_rows(ROWS_AT_ONCE, int(weight_VD.shape[1]), like=self._wide_VD)
        )
        self._rows = measure_rows([probe], [size for size in SIZES if size <= ROWS_AT_ONCE])

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return int(self._weight_VD.shape[0])

    def refresh(self) -> None:
        """Take the weights as they are now."""
        self._wide_VD = self._weight_VD.detach().float()

    def logits(self, hidden: Sequence[Tensor], candidates: Sequence[Ints | None]) -> list[Logits]:
        """For each row ``[S]`` logits of its candidates; None asks for the whole vocabulary."""
        found: list[Logits | None] = [None] * len(hidden)
        few = [at for at, ids in enumerate(candidates) if ids is not None and ids.size <= FEW]
        for at, logits in zip(few, self._few([hidden[at] for at in few], [candidates[at] for at in few]), strict=True):
            found[at] = logits
        rest = [at for at in range(len(hidden)) if found[at] is None]
        for start in range(0, len(rest), self._rows.most):
            chosen = rest[start : start + self._rows.most]
            whole_NV = self._whole(torch.stack([hidden[at] for at in chosen]))
            for at, logits_V in zip(chosen, whole_NV, strict=True):
                ids = candidates[at]
                found[at] = logits_V if ids is None else logits_V[ids]
        return [logits for logits in found if logits is not None]

    def _few(self, hidden: list[Tensor], candidates: list[Ints | None]) -> list[Logits]:
        lists = [ids for ids in candidates if ids is not None]
        if not lists:
            return []
        sizes = [ids.size for ids in lists]
        ids_P = torch.from_numpy(np.concatenate(lists).astype(np.int64)).to(self._wide_VD.device)
        rows_P = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(self._wide_VD.device)
        with torch.inference_mode():
            hidden_ND = torch.stack(hidden).double()
            products_P = (self._wide_VD[ids_P].double() * hidden_ND[rows_P]).sum(-1)
        return np.split(products_P.float().cpu().numpy(), np.cumsum(sizes)[:-1])

    def _whole(self, hidden_ND: Tensor) -> Logits:
        count = hidden_ND.shape[0]
        with torch.inference_mode():
            padded_ND = nn.functional.pad(hidden_ND.float(), (0, 0, 0, self._rows.padding(count)))
            found: Logits = self._product(padded_ND)[:count].cpu().numpy()
        return found

    def _product(self, hidden_ND: Tensor) -> Tensor:
        with torch.inference_mode():
            return nn.functional.linear(hidden_ND, self._wide_VD)
