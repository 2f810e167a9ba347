"""Bringing the engine up: seeds, published weights, options."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kifu.engines import build_engine
from kifu.errors import EngineFailure, UsageError
from kifu.policy import Engine, EngineSpec, LoraWeights, Machine, Request

Make = Callable[..., Engine]
Ask = Callable[..., Request]
SPEC = EngineSpec(seed=5, vocabulary=9, options={"hidden": 16})


def test_the_seed_alone_decides_the_first_weights() -> None:
    """Whatever the global generator does, which is neither read nor moved."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_engine("recurrent", SPEC).trainer.publish()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = build_engine("recurrent", SPEC).trainer.publish()
    other = build_engine("recurrent", replace(SPEC, seed=6)).trainer.publish()

    assert first.digest() == second.digest()
    assert first.digest() != other.digest()
    assert first.version == 0
    assert all(array.dtype == np.float32 and not array.flags.writeable for array in first.tensors.values())


async def test_sampler_and_trainer_start_from_equal_weights(ask: Ask, numpy_policy: Callable[..., Any]) -> None:
    """The sampler's first value is the one of the trainer's first version; the first policy is close to uniform."""
    engine = build_engine("recurrent", SPEC)
    policy = numpy_policy(engine.trainer.publish().tensors)

    found = await engine.sampler.sample(ask([1, 2]))

    assert found.value == pytest.approx(policy.value([1, 2]), abs=1e-6)
    assert found.entropy == pytest.approx(np.log(9), abs=1e-3)


def test_published_weights_and_their_version_are_taken_up(make: Make) -> None:
    """The number of the first publish is the one of the weights that were given."""
    weights = replace(build_engine("recurrent", replace(SPEC, seed=8)).trainer.publish(), version=4)

    engine = build_engine("recurrent", replace(SPEC, initial=weights))

    assert engine.sampler.version == 4
    assert (engine.trainer.publish().version, engine.trainer.publish().version) == (4, 5)
    assert engine.trainer.publish().digest() == weights.digest()


async def test_float64_is_float32s_model_with_more_digits(make: Make, ask: Ask) -> None:
    """Both dtypes draw the same numbers; published arrays keep the engine's dtype."""
    single, double = (
        build_engine("recurrent", replace(SPEC, options={"hidden": 16, "dtype": dtype}))
        for dtype in ("float32", "float64")
    )
    a, b = single.trainer.publish(), double.trainer.publish()

    assert all(np.array_equal(a.tensors[name], b.tensors[name].astype(np.float32)) for name in a.tensors)
    assert (await double.sampler.sample(ask([1]))).sampling.dtype == "float64"


def test_the_engine_describes_itself() -> None:
    """Parameters counted by hand: embedding, three gates twice, two heads."""
    engine = build_engine("recurrent", SPEC)
    expected = 9 * 16 + 2 * (3 * 16 * 16 + 3 * 16) + (9 * 16 + 9) + (16 + 1)

    assert engine.facts["parameters"] == str(expected)
    assert engine.has_value
    assert engine.reproducible


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"options": {"hiden": 16}}, "did you mean `hidden`"),
        ({"options": {"hidden": 20}}, "multiple of 16, found 20"),
        ({"options": {"hidden": "wide"}}, "whole number, found 'wide'"),
        ({"options": {"kind": "lstm"}}, "no kind `lstm`"),
        ({"options": {"dtype": "float16"}}, "no dtype `float16`"),
        ({"vocabulary": 0}, "at least 2 token ids, found 0"),
        ({"model": "models/smollm2"}, "builds its own model"),
        ({"weights": LoraWeights()}, "every parameter is trained"),
        ({"machine": Machine(device="cuda")}, "runs on the CPU"),
    ],
)
def test_settings_the_engine_does_not_know_are_refused(changed: dict[str, Any], message: str) -> None:
    """Each message names what was found."""
    with pytest.raises(UsageError, match=message):
        build_engine("recurrent", replace(SPEC, **changed))


async def test_weights_of_another_shape_are_refused_by_name() -> None:
    """Another width, another kind, an adapter."""
    wide = build_engine("recurrent", replace(SPEC, options={"hidden": 32})).trainer.publish()
    flat = build_engine("recurrent", replace(SPEC, options={"hidden": 16, "kind": "feedforward"})).trainer.publish()
    sampler = build_engine("recurrent", SPEC).sampler

    with pytest.raises(EngineFailure, match=r"`embedding` has shape \(9, 32\), expected \(9, 16\)"):
        await sampler.load(wide)
    with pytest.raises(EngineFailure, match="`gru"):
        await sampler.load(flat)
    with pytest.raises(EngineFailure, match="adapter"):
        await sampler.load(replace(wide, is_adapter=True))
