"""Environment x agent x sampler to records: limits, groups, typed failures."""

from kifu.rollout.branch import Departure, check_branchable
from kifu.rollout.facts import Conversation, Prompt, Question, Scoring, means, questions, with_facts
from kifu.rollout.history import ClearedResults, History, Window
from kifu.rollout.retelling import retell
from kifu.rollout.run import run_rollout
from kifu.rollout.session import Script, Session, tool_views
from kifu.rollout.setting import Branchable, Limits, Setting
from kifu.rollout.toolbox import Toolbox

__all__ = [
    "Branchable",
    "ClearedResults",
    "Conversation",
    "Departure",
    "History",
    "Limits",
    "Prompt",
    "Question",
    "Scoring",
    "Script",
    "Session",
    "Setting",
    "Toolbox",
    "Window",
    "check_branchable",
    "means",
    "questions",
    "retell",
    "run_rollout",
    "tool_views",
    "with_facts",
]
