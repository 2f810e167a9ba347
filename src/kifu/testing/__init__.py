"""Conformance checks of the contracts; run them on your own implementations."""

from kifu.testing.algorithms import AlgorithmCheckError, check_algorithm, trial_gradient
from kifu.testing.capture import CASES, CaptureReport, CaseResult, check_capture, run_cases
from kifu.testing.capture_contract import (
    CaptureCheckError,
    CaptureSubject,
    Claims,
    Kept,
    Met,
    NotOffered,
    Probe,
    Session,
    Token,
)
from kifu.testing.capture_kifu import KifuGateway
from kifu.testing.capture_model import FakeModel
from kifu.testing.environments import check_env
from kifu.testing.samplers import SamplerCheck, SamplerCheckError, Steps, check_sampler
from kifu.testing.sandboxes import SandboxCheckError, check_sandbox
from kifu.testing.trainers import TrainerCheck, TrainerCheckError, check_trainer
from kifu.testing.trials import Shape

__all__ = [
    "CASES",
    "AlgorithmCheckError",
    "CaptureCheckError",
    "CaptureReport",
    "CaptureSubject",
    "CaseResult",
    "Claims",
    "FakeModel",
    "Kept",
    "KifuGateway",
    "Met",
    "NotOffered",
    "Probe",
    "SamplerCheck",
    "SamplerCheckError",
    "SandboxCheckError",
    "Session",
    "Shape",
    "Steps",
    "Token",
    "TrainerCheck",
    "TrainerCheckError",
    "check_algorithm",
    "check_capture",
    "check_env",
    "check_sampler",
    "check_sandbox",
    "check_trainer",
    "run_cases",
    "trial_gradient",
]
