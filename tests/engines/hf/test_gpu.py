"""The engine on a CUDA device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from kifu.engines.hf import HfTrainer
from kifu.policy import Engine
from kifu.testing import SamplerCheck, check_sampler

Make = Callable[..., Engine]


@pytest.mark.gpu
def test_logprobs_on_cuda_are_those_of_plain_transformers(
    make: Make, plain: PreTrainedModel, recompute: Callable[..., Any]
) -> None:
    """Float32 on the device against float32 on the CPU."""
    made: list[Engine] = []

    def build(*, max_slots: int) -> Engine:
        made.append(make(max_slots=max_slots, device="cuda"))
        return made[-1]

    prompts = tuple(tuple(int(token) for token in np.random.default_rng(n).integers(3, 600, n)) for n in (23, 9, 41))
    check = SamplerCheck(prompts=prompts, allowed=((5, 6, 7), (9,), (11, 12)))

    assert check_sampler(build, check, recompute=lambda asked: recompute(plain, asked, made[0].bitmaps))


@pytest.mark.gpu
def test_gradients_on_cuda_are_those_of_the_cpu(make: Make, train_once: Callable[[Engine], None]) -> None:
    """One batch, both devices."""
    found = []
    for device in ("cpu", "cuda"):
        engine = make(device=device)
        train_once(engine)
        assert isinstance(engine.trainer, HfTrainer)
        found.append(engine.trainer.gradients())

    for name, wanted in found[0].items():
        np.testing.assert_allclose(found[1][name], wanted, atol=1e-5 + 1e-3 * float(np.abs(wanted).max()))
