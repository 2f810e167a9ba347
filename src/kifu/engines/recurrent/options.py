"""The engine's own settings, read from `EngineSpec.options`."""

from dataclasses import dataclass
from typing import Literal, cast

import torch

from kifu.errors import UsageError, nearest
from kifu.policy import EngineSpec, FullWeights

Kind = Literal["gru", "feedforward"]
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_LANES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Shape and numerics of the actor-critic."""

    hidden: int = 64
    """Width of embedding and state. A multiple of 16: then every row of a block runs through whole vector lanes."""
    kind: Kind = "gru"
    """``feedforward`` sees the last token only: the control without memory."""
    dtype: str = "float32"
    """``float64`` is for checks against enumeration."""

    def __post_init__(self) -> None:
        if self.hidden < _LANES or self.hidden % _LANES:
            raise UsageError(
                f"recurrent engine: option `hidden` must be a positive multiple of {_LANES}, found {self.hidden}"
            )
        if self.kind not in ("gru", "feedforward"):
            raise UsageError(f"recurrent engine: no kind `{self.kind}`; {nearest(self.kind, ['gru', 'feedforward'])}")
        if self.dtype not in _DTYPES:
            raise UsageError(f"recurrent engine: no dtype `{self.dtype}`; {nearest(self.dtype, list(_DTYPES))}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of parameters, states and gradients."""
        return _DTYPES[self.dtype]


def read_options(spec: EngineSpec) -> Options:
    """Check what the recurrent engine is asked for.

    Raises:
        UsageError: an unknown option or value, or a setting that belongs to another engine.
    """
    known = list(Options.__dataclass_fields__)
    for name in spec.options:
        if name not in known:
            raise UsageError(f"recurrent engine: no option `{name}`; {nearest(name, known)}")
    if spec.vocabulary < 2:
        raise UsageError(f"recurrent engine: `vocabulary` must be at least 2 token ids, found {spec.vocabulary}")
    if spec.model:
        raise UsageError(
            f"recurrent engine: builds its own model, found model `{spec.model}`. Leave it out or use `hf`."
        )
    if not isinstance(spec.weights, FullWeights):
        raise UsageError("recurrent engine: every parameter is trained; use weights = { type = 'full' }")
    if spec.machine.device != "cpu":
        raise UsageError(f"recurrent engine: runs on the CPU, found device `{spec.machine.device}`")
    hidden = spec.options.get("hidden", 64)
    if not isinstance(hidden, int) or isinstance(hidden, bool):
        raise UsageError(f"recurrent engine: option `hidden` must be a whole number, found {hidden!r}")
    return Options(
        hidden=hidden,
        kind=cast(Kind, str(spec.options.get("kind", "gru"))),
        dtype=str(spec.options.get("dtype", "float32")),
    )
