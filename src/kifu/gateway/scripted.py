"""Turns that a demonstrator writes where the policy would: a warm start through an agent's own code.

Axes: ``N`` tokens of a turn.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kifu.policy import Generation
from kifu.records import Finish, Sampling, ToolCall, as_floats
from kifu.render import ChatRenderer, ToolView


class Lines:
    """What a demonstrator says, one call a turn, whatever the agent asks."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._left = list(calls)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to say."""
        return not self._left

    def take(self) -> ToolCall:
        """The next line."""
        return self._left.pop(0)


def write_line(
    call: ToolCall, renderer: ChatRenderer, *, tools: Sequence[ToolView], sampling: Sampling, version: int
) -> Generation:
    """A call as the tokens that the policy would have to write, for the tools that the agent offers.

    Raises:
        RenderError: the agent offers no such tool, or the dialect cannot write the call.
    """
    ids = renderer.compose([call], tools)
    return Generation(
        token_ids=ids,
        sampled=np.zeros(ids.size, dtype=np.bool_),
        logprobs=as_floats(np.full(ids.size, np.nan)),
        policy_version=version,
        finish=Finish.STOP,
        sampling=replace(sampling, stream=""),
    )
