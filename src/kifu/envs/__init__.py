"""Environments and tasks: contracts, tools, the built-in suites."""

from kifu.envs.contract import Environment, digest_state
from kifu.envs.spec import Capabilities, Observation, Reply, Snapshot, SnapshotKind, Task, ToolSpec
from kifu.envs.tools import check_arguments, class_tools, command_text, finite_calls, tool, tool_spec, with_enum

__all__ = [
    "Capabilities",
    "Environment",
    "Observation",
    "Reply",
    "Snapshot",
    "SnapshotKind",
    "Task",
    "ToolSpec",
    "check_arguments",
    "class_tools",
    "command_text",
    "digest_state",
    "finite_calls",
    "tool",
    "tool_spec",
    "with_enum",
]
