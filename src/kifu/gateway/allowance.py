"""What the owner of a rollout allows: turns up to a limit, a demonstrator's lines in place of the policy's."""

from typing import Protocol

from kifu.gateway.asked import Asked
from kifu.gateway.refusal import Refusal
from kifu.gateway.scripted import Lines
from kifu.records import Outcome, StopReason

CONTEXT_FULL = "context_length_exceeded"


class Reached(Protocol):
    """Says which limit of its owner forbids a rollout another turn."""

    def __call__(self, *, turns: int, tokens: int, after_result: bool) -> tuple[StopReason, str] | None:
        """The limit that is reached; None when none is.

        Args:
            turns: written so far.
            tokens: in the context.
            after_result: whether the context ends with a tool's result.
        """
        ...


class Allowance:
    """The limits of one rollout. The first that refuses a call is how the rollout ended.

    Args:
        reached: which limit is reached.
        lines: a demonstrator's turns; without another one the rollout is over.
    """

    def __init__(self, reached: Reached | None = None, lines: Lines | None = None) -> None:
        self._reached = reached
        self.lines = lines
        self.cut: Outcome | None = None
        """The limit a call was refused at, whatever the agent did afterwards."""

    def check(self, asked: Asked, *, turns: int, tokens: int) -> None:
        """Let a call pass.

        Args:
            asked: the call.
            turns: written so far.
            tokens: of its prompt.

        Raises:
            Refusal: a limit is reached, or the demonstrator has nothing more to say.
        """
        after_result = bool(asked.messages) and asked.messages[-1].role == "tool"
        found = None if self._reached is None else self._reached(turns=turns, tokens=tokens, after_result=after_result)
        if found is None and self.lines is not None and self.lines.is_over:
            found = StopReason.NATURAL_END, "the script is over"
        if found is not None:
            self._end_at(*found)
            raise Refusal(f"this rollout takes no more calls: {found[1]}", code="limit_reached")
        if self.lines is not None and asked.n != 1:
            raise Refusal("n: a demonstration has one answer to a call", field="n", code="unsupported_value")

    def refused(self, refusal: Refusal) -> None:
        """Take note of a call that could not be placed: a context that is full ends the rollout."""
        if refusal.code == CONTEXT_FULL:
            self._end_at(StopReason.CONTEXT_LIMIT, str(refusal))

    def _end_at(self, reason: StopReason, detail: str) -> None:
        if self.cut is None:
            self.cut = Outcome(reason=reason, detail=detail)
