"""kifu's own strategy, as layer 2 of an experiment states it."""

from kifu.agents import AGENTS, REPAIRS, Agent
from kifu.training.agent_layers import ToolCalling
from kifu.training.layers import HfPolicy, PolicyLayer

AGENT = "tool_calling"


def own_agent(policy: PolicyLayer) -> Agent:
    """The strategy with the repair that the file names."""
    layer = policy.agent if isinstance(policy, HfPolicy) else None
    repair = layer.repair if isinstance(layer, ToolCalling) else "none"
    return AGENTS[AGENT](None if repair == "none" else REPAIRS[repair]())
