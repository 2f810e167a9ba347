"""Verifiers: small functions from what happened to a Verdict."""

from kifu.verify.cheats import CHEATS, Cheat
from kifu.verify.linting import Attempt, LintReport, Tried, code_attempts, lint
from kifu.verify.logs import read_log
from kifu.verify.outside import FunctionTask, Workshop, judge_outside
from kifu.verify.program import Logged, ProgramJudge, ProgramSuite
from kifu.verify.repository import TestJudge, TestRun, TestSuite, suite_workshop
from kifu.verify.state import differences, goal_state, named_checks
from kifu.verify.swe_rl import Edit, Effort, PatchReward, read_edits, swe_rl, swe_rl_reward
from kifu.verify.text import exact, find_number, numeric, regex, squeeze

__all__ = [
    "CHEATS",
    "Attempt",
    "Cheat",
    "Edit",
    "Effort",
    "FunctionTask",
    "LintReport",
    "Logged",
    "PatchReward",
    "ProgramJudge",
    "ProgramSuite",
    "TestJudge",
    "TestRun",
    "TestSuite",
    "Tried",
    "Workshop",
    "code_attempts",
    "differences",
    "exact",
    "find_number",
    "goal_state",
    "judge_outside",
    "lint",
    "named_checks",
    "numeric",
    "read_edits",
    "read_log",
    "regex",
    "squeeze",
    "suite_workshop",
    "swe_rl",
    "swe_rl_reward",
]
