"""Keys and values kept between forwards, one slot per context.

Axes: ``S`` slots, ``K`` key-value heads, ``C`` positions a slot can hold, ``D`` head size.
"""

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 128
"""Positions a slot can hold are a multiple of this many."""


class Kept:
    """The store. Memory is taken by the system as positions are written, not when the store is made."""

    def __init__(
        self, *, num_slots: int, capacity: int, dtype: torch.dtype, device: torch.device, share: int = 1
    ) -> None:
        self.num_slots = num_slots
        self.share = share
        """Query heads per key-value head."""
        self.dtype = dtype
        self.device = device
        self.capacity = -(-capacity // ALIGNMENT) * ALIGNMENT
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, *, num_groups: int, key_size: int, value_size: int) -> tuple[Tensor, Tensor]:
        """``[S, K, C, D]`` keys and values of one layer."""
        if index not in self._layers:
            self._layers[index] = (self._zeros(num_groups, key_size), self._zeros(num_groups, value_size))
        return self._layers[index]

    def _zeros(self, num_groups: int, size: int) -> Tensor:
        shape = (self.num_slots, num_groups, self.capacity, size)
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        lazy = np.zeros(shape, dtype=np.float32 if self.dtype == torch.float32 else np.uint16)
        return torch.from_numpy(lazy).view(self.dtype)

    def copy(self, source: int, targets: list[int], *, start: int, stop: int) -> None:
        """Give ``targets`` positions ``start`` to ``stop`` of ``source``."""
        chosen = torch.tensor(targets, device=self.device)
        with torch.inference_mode():
            for kept in (part for layer in self._layers.values() for part in layer):
                kept[chosen, :, start:stop] = kept[source : source + 1, :, start:stop]
