"""Bring the recurrent engine up."""

import torch

from kifu.engines.recurrent.model import ActorCritic
from kifu.engines.recurrent.options import read_options
from kifu.engines.recurrent.prefixes import BLOCK
from kifu.engines.recurrent.sampler import RecurrentSampler
from kifu.engines.recurrent.threads import one_thread
from kifu.engines.recurrent.trainer import RecurrentTrainer
from kifu.engines.recurrent.weights import load_weights
from kifu.policy import Engine, EngineSpec

_TRIALS = 8


def build(spec: EngineSpec) -> Engine:
    """A sampler and a trainer over equal weights: those of ``spec.initial``, else drawn from ``spec.seed``.

    Raises:
        UsageError: an option or setting this engine does not know.
        EngineFailure: initial weights of another shape.
    """
    options = read_options(spec)
    sampled, trained = (ActorCritic(options, vocabulary=spec.vocabulary, seed=spec.seed) for _ in range(2))
    version = 0
    if spec.initial is not None:
        version = spec.initial.version
        load_weights(sampled, spec.initial)
        load_weights(trained, spec.initial)
    sampler = RecurrentSampler(sampled, spec=spec, version=version)
    return Engine(
        sampler=sampler,
        trainer=RecurrentTrainer(trained, optimizer=spec.optimizer, version=version),
        reproducible=rows_are_independent(sampled, vocabulary=spec.vocabulary),
        has_value=True,
        counters=lambda: {"positions_fed": sampler.positions_fed, "positions_refed": sampler.positions_refed},
        facts={
            "kind": options.kind,
            "hidden": str(options.hidden),
            "vocabulary": str(spec.vocabulary),
            "parameters": str(sum(parameter.numel() for parameter in trained.parameters())),
            "dtype": options.dtype,
            "block_rows": str(BLOCK),
        },
    )


def rows_are_independent(model: ActorCritic, *, vocabulary: int) -> bool:
    """Whether a row of a block gives the same bits in every slot and beside any neighbours, on this machine."""
    generator = torch.Generator().manual_seed(0)
    dtype = model.embedding.dtype
    state_BH = torch.rand(BLOCK, model.hidden, generator=generator, dtype=dtype) * 2 - 1
    token_B = torch.randint(vocabulary, (BLOCK,), generator=generator)
    with one_thread(), torch.inference_mode():
        expected = _outputs(model, state_BH, token_B)
        for _ in range(_TRIALS):
            slots = torch.randperm(BLOCK, generator=generator)
            rows = slots[: int(torch.randint(1, BLOCK + 1, (1,), generator=generator))]
            to = torch.randperm(BLOCK, generator=generator)[: rows.numel()]
            others_BH = torch.rand(BLOCK, model.hidden, generator=generator, dtype=dtype) * 2 - 1
            others_B = torch.randint(vocabulary, (BLOCK,), generator=generator)
            others_BH[to], others_B[to] = state_BH[rows], token_B[rows]
            found = _outputs(model, others_BH, others_B)
            if any(not torch.equal(a[to], b[rows]) for a, b in zip(found, expected, strict=True)):
                return False
    return True


def _outputs(model: ActorCritic, state_BH: torch.Tensor, token_B: torch.Tensor) -> tuple[torch.Tensor, ...]:
    after_BH = model.step(state_BH, token_B)
    return after_BH, model.logits(after_BH), model.values(after_BH)
