"""Torch-free contracts between whoever samples, scores or trains and everybody else."""

from kifu.policy.contracts import (
    BatchScorer,
    Constraint,
    Generation,
    Request,
    Sampler,
    Scorer,
    ScoreRequest,
    Scores,
    StepResult,
    Trainer,
    Weights,
)
from kifu.policy.engine import AdamW, Engine, EngineSpec, FullWeights, LoraWeights, Machine, WeightsSpec
from kifu.policy.scripted import ScriptedSampler
from kifu.policy.stream import inverse_cdf, uniform

__all__ = [
    "AdamW",
    "BatchScorer",
    "Constraint",
    "Engine",
    "EngineSpec",
    "FullWeights",
    "Generation",
    "LoraWeights",
    "Machine",
    "Request",
    "Sampler",
    "ScoreRequest",
    "Scorer",
    "Scores",
    "ScriptedSampler",
    "StepResult",
    "Trainer",
    "Weights",
    "WeightsSpec",
    "inverse_cdf",
    "uniform",
]
