"""Environments and tasks: contracts, tools, the built-in suites."""

from kifu.envs.contract import Environment, digest_state
from kifu.envs.spec import Capabilities, Observation, Reply, SnapshotKind, Task, ToolSpec
from kifu.envs.tools import check_arguments, class_tools, tool, tool_spec

__all__ = [
    "Capabilities",
    "Environment",
    "Observation",
    "Reply",
    "SnapshotKind",
    "Task",
    "ToolSpec",
    "check_arguments",
    "class_tools",
    "digest_state",
    "tool",
    "tool_spec",
]
