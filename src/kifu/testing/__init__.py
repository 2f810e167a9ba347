"""Conformance checks of the contracts; run them on your own implementations."""

from kifu.testing.algorithms import AlgorithmCheckError, check_algorithm, trial_gradient
from kifu.testing.environments import check_env
from kifu.testing.samplers import SamplerCheck, SamplerCheckError, Steps, check_sampler
from kifu.testing.sandboxes import SandboxCheckError, check_sandbox
from kifu.testing.trainers import TrainerCheck, TrainerCheckError, check_trainer
from kifu.testing.trials import Shape

__all__ = [
    "AlgorithmCheckError",
    "SamplerCheck",
    "SamplerCheckError",
    "SandboxCheckError",
    "Shape",
    "Steps",
    "TrainerCheck",
    "TrainerCheckError",
    "check_algorithm",
    "check_env",
    "check_sampler",
    "check_sandbox",
    "check_trainer",
    "trial_gradient",
]
