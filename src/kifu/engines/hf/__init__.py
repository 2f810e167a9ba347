"""The engine for language models: any causal model of transformers, sampled and trained in this process."""

from collections.abc import Mapping

import torch

from kifu.engines.hf.loading import CausalModel, load_model
from kifu.engines.hf.sampler import HfSampler
from kifu.engines.hf.threads import apart, share_one_heap
from kifu.engines.hf.trainer import HfTrainer
from kifu.engines.hf.worker import Stats
from kifu.errors import UsageError, nearest
from kifu.policy import Engine, EngineSpec, FullWeights, LoraWeights

OPTIONS: Mapping[str, type] = {}
"""The engine has no settings of its own."""


def build(spec: EngineSpec) -> Engine:
    """Load the model twice, once to sample and once to train, so that training never disturbs a running call.

    Raises:
        UsageError: no model folder, an unknown option, or more context than the model has positions.
        ModelError: the model cannot be loaded or its logits are not understood.
    """
    if not spec.model:
        raise UsageError("engine `hf`: no model; set EngineSpec.model to a folder, e.g. of `kifu models pull`")
    for name in spec.options:
        raise UsageError(f"engine `hf` has no option `{name}`; {nearest(name, list(OPTIONS))}")
    share_one_heap()
    return apart(lambda: _load(spec))


def _load(spec: EngineSpec) -> Engine:
    machine = spec.machine
    torch.set_num_threads(machine.threads)
    trainer = HfTrainer(
        load_model(spec.model, dtype="float32", device=machine.device),
        weights=spec.weights,
        optimizer=spec.optimizer,
        machine=machine,
        seed=spec.seed,
    )
    model = load_model(spec.model, dtype=machine.sampler_dtype, device=machine.device)
    _check_positions(model, spec)
    lora = spec.weights if isinstance(spec.weights, LoraWeights) else None
    sampler = HfSampler(
        model,
        machine=machine,
        max_context=spec.max_context,
        base=trainer.adapted if lora else None,
        adapter_scale=lora.alpha / lora.rank if lora else None,
    )
    trainer.bitmaps = sampler.bitmaps
    if spec.initial is not None:
        trainer.start_from(spec.initial)
        sampler.start_from(spec.initial)
    return Engine(
        sampler=sampler,
        trainer=trainer,
        reproducible=sampler.reproducible,
        layout="tree" if trainer.tree_exact else "rows",
        bitmaps=sampler.bitmaps,
        counters=lambda: _counters(sampler.stats),
        close=sampler.close,
        facts={
            "model": type(model.whole).__name__,
            "parameters": str(sum(parameter.numel() for parameter in model.parameters().values())),
            "trainable_parameters": str(trainer.num_trainable),
            "weights": "full" if isinstance(spec.weights, FullWeights) else "lora",
            "sampler_dtype": machine.sampler_dtype,
            "trainer_dtype": machine.trainer_dtype,
            "device": machine.device,
            "sampling": sampler.backend,
            "rows": sampler.rows,
            "tree_exact": str(trainer.tree_exact).lower(),
        },
    )


def _counters(stats: Stats) -> Mapping[str, int]:
    return {
        "positions_fed": stats.positions_fed,
        "positions_reused": stats.prefix_reused,
        "evictions": stats.evictions,
        "forwards": stats.forwards,
    }


def _check_positions(model: CausalModel, spec: EngineSpec) -> None:
    limit = getattr(model.whole.config, "max_position_embeddings", None)
    if isinstance(limit, int) and spec.max_context > limit:
        raise UsageError(
            f"engine `hf`: max_context is {spec.max_context}, the model at `{spec.model}` has {limit} positions; "
            f"lower max_context"
        )


__all__ = ["HfSampler", "HfTrainer", "Stats", "build", "load_model"]
