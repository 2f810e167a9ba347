"""What this machine is good at, and the settings that follow; never part of the protocol."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kifu.policy import Machine
from kifu.training.experiment.layers import MachineTable

_FAST_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""CPU flags of x86 and Arm that make bfloat16 products faster than float32."""

_SPARE, _FEWEST, _MOST = 8, 32, 512
"""Contexts kept: a few more than run at once, so that shared prompts stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor as the operating system describes it."""

    name: str
    cores: int
    """Cores this process may use."""
    fast_bf16: bool


def this_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """Read the processor; without ``/proc`` bfloat16 counts as slow."""
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    lines = [line.partition(":")[::2] for line in text.splitlines()]
    facts = {key.strip().lower(): value.strip() for key, value in lines}
    flags = set((facts.get("flags") or facts.get("features") or "").split())
    return Cpu(
        name=facts.get("model name") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        fast_bf16=bool(flags & _FAST_BF16),
    )


def resolve_machine(table: MachineTable, *, small: bool, contexts: int = 64) -> Machine:
    """Fill what ``[machine]`` leaves open.

    Args:
        table: the file's table.
        small: the policy is a toy that gains nothing from bfloat16 or threads.
        contexts: rollouts under way at once; so many keys and values are kept, within reason.
    """
    cpu = this_cpu()
    fast: Literal["float32", "bfloat16"] = (
        "bfloat16" if (cpu.fast_bf16 or table.device == "cuda") and not small else "float32"
    )
    return Machine(
        device=table.device,
        sampler_dtype=table.sampler_dtype or fast,
        trainer_dtype=table.trainer_dtype or fast,
        threads=table.threads or (1 if small else cpu.cores),
        max_nodes=table.max_nodes,
        activation_checkpointing=table.activation_checkpointing,
        max_slots=min(max(contexts + _SPARE, _FEWEST), _MOST),
    )
