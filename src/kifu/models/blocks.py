"""The block formats of GGUF that are read, and their values in float32.

A block holds 32 values ``q`` as small integers with a scale ``d`` and, in Q4_1, an offset ``m``, both float16. Four-bit
values come in pairs: the low halves of the 16 bytes are values 0 to 15, the high halves 16 to 31.

    Q8_0   x = d q          Q4_0   x = d (q - 8)          Q4_1   x = d q + m
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kifu.errors import ModelError
from kifu.models.weights import Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block format."""

    name: str
    values: int
    """Values in one block."""
    layout: np.dtype[np.void]


BLOCKS = {
    0: Block(name="F32", values=1, layout=np.dtype([("x", "<f4")])),
    1: Block(name="F16", values=1, layout=np.dtype([("x", "<f2")])),
    2: Block(name="Q4_0", values=32, layout=np.dtype([("d", "<f2"), ("q", "u1", 16)])),
    3: Block(name="Q4_1", values=32, layout=np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])),
    8: Block(name="Q8_0", values=32, layout=np.dtype([("d", "<f2"), ("q", "i1", 32)])),
}
"""Number in the file to format."""
_LAYOUTS = {block.name: block.layout for block in BLOCKS.values()}


def dequantize(kind: str, raw: bytes) -> Float32s:
    """``[N]`` float32 values of whole blocks.

    Args:
        kind: name of the block format.
        raw: the blocks' bytes; a whole number of blocks.
    """
    blocks = np.frombuffer(raw, _LAYOUTS[kind])
    with np.errstate(all="ignore"):  # damaged scales may be infinite; the caller looks at the result
        match kind:
            case "F32" | "F16":
                return blocks["x"].astype(np.float32)
            case "Q8_0":
                return (_column(blocks["d"]) * blocks["q"].astype(np.float32)).reshape(-1)
            case "Q4_0":
                return (_column(blocks["d"]) * (_halves(blocks["q"]) - np.float32(8))).reshape(-1)
            case "Q4_1":
                return (_column(blocks["d"]) * _halves(blocks["q"]) + _column(blocks["m"])).reshape(-1)
    raise ModelError(f"no block format `{kind}`. Known: {', '.join(_LAYOUTS)}.")


def _column(scales: npt.NDArray[np.float16]) -> Float32s:
    return scales.astype(np.float32)[:, None]


def _halves(packed: npt.NDArray[np.uint8]) -> Float32s:
    """``[blocks, 32]`` unsigned four-bit integers of ``[blocks, 16]`` bytes."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
