"""Conformance checks of the contracts; run them on your own implementations."""

from kifu.testing.environments import check_env
from kifu.testing.samplers import SamplerCheck, SamplerCheckError, Steps, check_sampler
from kifu.testing.trainers import TrainerCheck, TrainerCheckError, check_trainer

__all__ = [
    "SamplerCheck",
    "SamplerCheckError",
    "Steps",
    "TrainerCheck",
    "TrainerCheckError",
    "check_env",
    "check_sampler",
    "check_trainer",
]
