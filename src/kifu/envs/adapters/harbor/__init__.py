"""Task folders of Harbor: configuration, instruction, tests, rewards, and what a trial's failure means."""

from kifu.envs.adapters.harbor.errors import ErrorRule, error_rule
from kifu.envs.adapters.harbor.folder import HarborStep, HarborTask, needs_image, read_harbor
from kifu.envs.adapters.harbor.rewards import read_rewards

__all__ = [
    "ErrorRule",
    "HarborStep",
    "HarborTask",
    "error_rule",
    "needs_image",
    "read_harbor",
    "read_rewards",
]
