"""Strategies between environment and sampler."""

from kifu.agents.contract import Agent, PolicyHandle, World
from kifu.agents.repair import REPAIRS, EnumArguments, Repair
from kifu.agents.tool_calling import ToolCallingAgent

AGENTS: dict[str, type[ToolCallingAgent]] = {"tool_calling": ToolCallingAgent}

__all__ = ["AGENTS", "REPAIRS", "Agent", "EnumArguments", "PolicyHandle", "Repair", "ToolCallingAgent", "World"]
