"""Verifiers: small functions from what happened to a Verdict."""

from kifu.verify.outside import FunctionTask, Workshop, judge_outside
from kifu.verify.repository import TestJudge, TestRun, TestSuite, suite_workshop
from kifu.verify.state import differences, goal_state, named_checks
from kifu.verify.swe_rl import Edit, Effort, PatchReward, read_edits, swe_rl, swe_rl_reward
from kifu.verify.text import exact, find_number, numeric, regex, squeeze

__all__ = [
    "Edit",
    "Effort",
    "FunctionTask",
    "PatchReward",
    "TestJudge",
    "TestRun",
    "TestSuite",
    "Workshop",
    "differences",
    "exact",
    "find_number",
    "goal_state",
    "judge_outside",
    "named_checks",
    "numeric",
    "read_edits",
    "regex",
    "squeeze",
    "suite_workshop",
    "swe_rl",
    "swe_rl_reward",
]
