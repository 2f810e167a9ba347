"""Tasks in foreign formats, read strictly into values of this library."""

from kifu.envs.adapters.harbor import (
    ErrorRule,
    HarborStep,
    HarborTask,
    error_rule,
    needs_image,
    read_harbor,
    read_rewards,
)
from kifu.envs.adapters.swebench import read_swebench
from kifu.envs.adapters.swesmith import read_swesmith

__all__ = [
    "ErrorRule",
    "HarborStep",
    "HarborTask",
    "error_rule",
    "needs_image",
    "read_harbor",
    "read_rewards",
    "read_swebench",
    "read_swesmith",
]
