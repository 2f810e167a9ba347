"""Checked conversion to float64, shared by the formulas of this room."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kifu.errors import ArgumentError

Doubles: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = Sequence[float] | npt.NDArray[Any]


def as_doubles(values: Numbers, *, name: str) -> Doubles:
    """Copy to a read-only float64 vector; anything but finite numbers along one axis is an error."""
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1:
        raise ArgumentError(f"{name} must have one axis, found shape {array.shape}")
    if not bool(np.isfinite(array).all()):
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ArgumentError(f"{name} must be finite, found {array[at]} at {at}; what is absent is None, not a number")
    array.flags.writeable = False
    return array


def check_gamma(gamma: float) -> None:
    """Refuse a discount outside [0, 1]."""
    if not 0.0 <= gamma <= 1.0:
        raise ArgumentError(f"gamma must lie in [0, 1], found {gamma}")


def discounts(durations_K: Numbers | None, *, gamma: float, count: int) -> Doubles:
    """``[K]`` factor gamma^tau_k between the start of turn k and the start of turn k + 1; tau is 1 when not given."""
    check_gamma(gamma)
    if durations_K is None:
        return np.full(count, gamma, dtype=np.float64)
    tau_K = as_doubles(durations_K, name="durations")
    if tau_K.size != count:
        raise ArgumentError(f"{tau_K.size} durations for {count} turns")
    if bool((tau_K <= 0).any()):
        raise ArgumentError(f"durations must be > 0 task units, found {tau_K.min()}")
    factors: Doubles = np.power(gamma, tau_K)
    return factors
