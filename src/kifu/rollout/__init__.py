"""Environment x agent x sampler to records: limits, groups, typed failures."""

from kifu.rollout.run import run_rollout
from kifu.rollout.session import Script, Session, tool_views
from kifu.rollout.setting import Limits, Setting

__all__ = ["Limits", "Script", "Session", "Setting", "run_rollout", "tool_views"]
