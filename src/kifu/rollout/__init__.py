"""Environment x agent x sampler to records: limits, groups, typed failures."""

from kifu.rollout.branch import Departure, check_branchable
from kifu.rollout.run import run_rollout
from kifu.rollout.session import Script, Session, tool_views
from kifu.rollout.setting import Branchable, Limits, Setting

__all__ = [
    "Branchable",
    "Departure",
    "Limits",
    "Script",
    "Session",
    "Setting",
    "check_branchable",
    "run_rollout",
    "tool_views",
]
