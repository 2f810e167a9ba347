"""Reinforcement learning of LLM agents on records that can be trusted."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kifu.envs.contract import Environment
    from kifu.envs.rewards import reward
    from kifu.envs.spec import Capabilities, Component, Observation, Reply, SnapshotKind, Task
    from kifu.envs.tools import tool
    from kifu.errors import KifuError
    from kifu.evaluation.runs import compare_runs as compare
    from kifu.gateway.outside import agent
    from kifu.models.resolve import pull
    from kifu.records.outcome import StopReason, Verdict
    from kifu.records.turns import ToolCall
    from kifu.training.experiment.reading import load_experiment
    from kifu.training.inspection.audit import audit
    from kifu.training.run import resume
    from kifu.training.simple import evaluate, train

_TABLE = {
    "Capabilities": "kifu.envs.spec:Capabilities",
    "Component": "kifu.envs.spec:Component",
    "Environment": "kifu.envs.contract:Environment",
    "KifuError": "kifu.errors:KifuError",
    "Observation": "kifu.envs.spec:Observation",
    "Reply": "kifu.envs.spec:Reply",
    "SnapshotKind": "kifu.envs.spec:SnapshotKind",
    "StopReason": "kifu.records.outcome:StopReason",
    "Task": "kifu.envs.spec:Task",
    "ToolCall": "kifu.records.turns:ToolCall",
    "Verdict": "kifu.records.outcome:Verdict",
    "agent": "kifu.gateway.outside:agent",
    "audit": "kifu.training.inspection.audit:audit",
    "compare": "kifu.evaluation.runs:compare_runs",
    "evaluate": "kifu.training.simple:evaluate",
    "load_experiment": "kifu.training.experiment.reading:load_experiment",
    "pull": "kifu.models.resolve:pull",
    "resume": "kifu.training.run:resume",
    "reward": "kifu.envs.rewards:reward",
    "tool": "kifu.envs.tools:tool",
    "train": "kifu.training.simple:train",
}
"""Public name to ``module:name``; loaded when it is asked for, so that importing kifu loads nothing."""

__all__ = [
    "Capabilities",
    "Component",
    "Environment",
    "KifuError",
    "Observation",
    "Reply",
    "SnapshotKind",
    "StopReason",
    "Task",
    "ToolCall",
    "Verdict",
    "agent",
    "audit",
    "compare",
    "evaluate",
    "load_experiment",
    "pull",
    "resume",
    "reward",
    "tool",
    "train",
]


if not TYPE_CHECKING:  # a type checker sees the imports above, and knows which names there are not

    def __getattr__(name: str) -> object:
        if name not in _TABLE:
            raise AttributeError(f"module 'kifu' has no attribute {name!r}")
        module, found = _TABLE[name].split(":")
        try:
            value: object = getattr(import_module(module), found)
        except ModuleNotFoundError as missing:
            hint = import_module("kifu.errors").install_hint(missing.name)
            why = f"needs the package `{missing.name}`, which is not installed"
            raise ImportError(f"kifu.{name} {why}: {hint}") from missing
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
