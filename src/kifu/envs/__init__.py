"""Environments and tasks: contracts, tools, the built-in suites."""

from kifu.envs.calling.guard import Called, GuardedEnvironment
from kifu.envs.calling.pool import WorkerPool
from kifu.envs.contract import Environment, digest_state
from kifu.envs.gate import Attempt, Attempts, Gate, Mode, Purpose, Status
from kifu.envs.gated import Gated
from kifu.envs.registry import ENVIRONMENTS, resolve_environment
from kifu.envs.spec import Capabilities, Component, Observation, Reply, Snapshot, SnapshotKind, Task, ToolSpec
from kifu.envs.splits import SPLITS, in_share, split_range
from kifu.envs.tools import (
    check_arguments,
    check_call,
    class_tools,
    command_text,
    finite_calls,
    tool,
    tool_spec,
    with_enum,
    with_pattern,
)
from kifu.envs.view import View

__all__ = [
    "ENVIRONMENTS",
    "SPLITS",
    "Attempt",
    "Attempts",
    "Called",
    "Capabilities",
    "Component",
    "Environment",
    "Gate",
    "Gated",
    "GuardedEnvironment",
    "Mode",
    "Observation",
    "Purpose",
    "Reply",
    "Snapshot",
    "SnapshotKind",
    "Status",
    "Task",
    "ToolSpec",
    "View",
    "WorkerPool",
    "check_arguments",
    "check_call",
    "class_tools",
    "command_text",
    "digest_state",
    "finite_calls",
    "in_share",
    "resolve_environment",
    "split_range",
    "tool",
    "tool_spec",
    "with_enum",
    "with_pattern",
]
