"""Strategies between environment and sampler."""

from kifu.agents.contract import Agent, PolicyHandle, World
from kifu.agents.memory import READ, WRITE, Answer, KeyValueMemory, Memory, MemoryRule
from kifu.agents.repair import REPAIRS, EnumArguments, Repair
from kifu.agents.tool_calling import ToolCallingAgent

AGENTS: dict[str, type[ToolCallingAgent]] = {"tool_calling": ToolCallingAgent}

__all__ = [
    "AGENTS",
    "READ",
    "REPAIRS",
    "WRITE",
    "Agent",
    "Answer",
    "EnumArguments",
    "KeyValueMemory",
    "Memory",
    "MemoryRule",
    "PolicyHandle",
    "Repair",
    "ToolCallingAgent",
    "World",
]
