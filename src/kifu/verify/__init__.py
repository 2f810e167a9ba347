"""Verifiers: small functions from what happened to a Verdict."""

from kifu.verify.state import differences, goal_state, named_checks
from kifu.verify.text import exact, find_number, numeric, regex, squeeze

__all__ = [
    "differences",
    "exact",
    "find_number",
    "goal_state",
    "named_checks",
    "numeric",
    "regex",
    "squeeze",
]
