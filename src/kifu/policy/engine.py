"""How an engine is asked for and what it is: one sampler and one trainer over the same weights."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from kifu.policy.contracts import Sampler, Trainer, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class FullWeights:
    """Every parameter is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraWeights:
    """A low-rank adapter on every linear layer of the blocks (Hu et al., 2021); the base is frozen."""

    rank: int = 16
    alpha: float = 32.0


WeightsSpec: TypeAlias = FullWeights | LoraWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter, 2019), with warm-up and schedule."""

    learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    """Largest gradient norm; None does not clip."""
    warmup_steps: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """From the peak down to 0 at ``total_steps``."""
    total_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How a machine is used; never part of the protocol."""

    device: str = "cpu"
    sampler_dtype: Literal["float32", "bfloat16"] = "float32"
    """Also the dtype in which versions are published."""
    trainer_dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: float32 master weights, rounded to what is computed with."""
    threads: int = 2
    max_nodes: int = 2048
    """Largest number of tree nodes or padded tokens in one forward of the trainer."""
    activation_checkpointing: bool = False
    max_slots: int = 128
    """Contexts whose keys and values are kept at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Everything an engine needs to come up."""

    model: str = ""
    """Folder of a model (safetensors, config.json, tokenizer.json); empty for engines without one."""
    weights: WeightsSpec = field(default_factory=FullWeights)
    optimizer: AdamW = field(default_factory=AdamW)
    machine: Machine = field(default_factory=Machine)
    initial: Weights | None = None
    """Published weights to start from instead of the model's own; their version is the engine's first."""
    seed: int = 0
    """Initializes whatever is not loaded."""
    vocabulary: int = 0
    """Number of token ids, for engines that build their own model."""
    max_context: int = 1024
    """Tokens."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """The engine's own settings, checked by it: an unknown name is an error."""


def _nothing_to_close() -> None:
    """For engines without threads."""


async def _nothing_to_hang_up() -> None:
    """For engines without connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What ``build(spec)`` of every engine returns."""

    sampler: Sampler
    trainer: Trainer[Any, Any]
    reproducible: bool
    """Whether the load-time check found generations independent of their neighbours, bit for bit."""
    has_value: bool = False
    layout: Literal["tree", "rows"] = "rows"
    """How batches for the trainer are packed: merged by common prefix, or one row per sequence."""
    close: Callable[[], None] = _nothing_to_close
    """Ends threads and frees what the engine holds; nobody uses it after."""
    hang_up: Callable[[], Awaitable[None]] = _nothing_to_hang_up
    """Closes connections; awaited before the event loop that sampled ends."""
    counters: Callable[[], Mapping[str, int]] = dict
    """What the sampler counted since it came up: positions that went through the model, positions that were reused,
    contexts that were pushed out. Empty where nothing is counted."""
    bitmaps: dict[str, bytes] = field(default_factory=dict)
    """Packed bitmaps of supports by digest: the sampler adds, the trainer reads, the run keeps them."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """For people and the run file: parameter count, dtypes, kernels."""
