"""The marker of reward functions: checked where it is written, not in the middle of a run."""

import inspect

from kifu.envs.suites.jsonl import RewardFunction
from kifu.errors import UsageError


def reward(function: RewardFunction) -> RewardFunction:
    """Mark a function of an answer and its task as a reward.

    It returns a success, a score or a `kifu.Verdict`; a score of at least 1 is a success. It runs where the training
    runs, and no agent sees it.

    Raises:
        UsageError: it does not take the two, or it is async.
    """
    where = f"reward `{getattr(function, '__qualname__', type(function).__name__)}`"
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{where}: is async, expected a plain function (answer, task)")
    try:
        inspect.signature(function).bind("answer", object())
    except TypeError as cause:
        raise UsageError(f"{where}: cannot be called with an answer and a task: {cause}") from cause
    return function
