"""A server in front of any sampler that records outside agents, token for token."""

from kifu.gateway.allowance import Allowance, Reached
from kifu.gateway.asked import Asked, Choosing, Decoding, Form
from kifu.gateway.attempting import Case, Terms, attempt
from kifu.gateway.boxed import BoxedCommand
from kifu.gateway.capture import Capture, Delivered
from kifu.gateway.captured import Captured, Choice
from kifu.gateway.endpoint import Endpoint, OutsideAgent, Ran
from kifu.gateway.forked import Forked
from kifu.gateway.gateway import Gateway, Opened
from kifu.gateway.keys import Grant, KeyRing, Role
from kifu.gateway.lineage import AgentLink, agent_links
from kifu.gateway.outside import Command, Function, Outside, agent
from kifu.gateway.refusal import Refusal
from kifu.gateway.rollout import Desk, Rollout
from kifu.gateway.said import Said, SaidCall
from kifu.gateway.settings import ALTERNATIVES, Limits, Serving

__all__ = [
    "ALTERNATIVES",
    "AgentLink",
    "Allowance",
    "Asked",
    "BoxedCommand",
    "Capture",
    "Captured",
    "Case",
    "Choice",
    "Choosing",
    "Command",
    "Decoding",
    "Delivered",
    "Desk",
    "Endpoint",
    "Forked",
    "Form",
    "Function",
    "Gateway",
    "Grant",
    "KeyRing",
    "Limits",
    "Opened",
    "Outside",
    "OutsideAgent",
    "Ran",
    "Reached",
    "Refusal",
    "Role",
    "Rollout",
    "Said",
    "SaidCall",
    "Serving",
    "Terms",
    "agent",
    "agent_links",
    "attempt",
]
