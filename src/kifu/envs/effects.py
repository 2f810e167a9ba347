"""One call of an environment in the log of effects: written down before it is made and after it has returned."""

import hashlib
from types import TracebackType
from typing import Self

from kifu.envs.spec import Reply
from kifu.records import Json, ToolCall
from kifu.sandbox import EffectLog, Pending

KIND = "environment"
"""Kind of these lines; what a box does inside of the call has kinds of its own."""
IRREVERSIBLE = "irreversible"
"""Kind of the lines of `kifu.envs.Gated`: a note for an attempt not carried out, two lines around one that is."""
ATTACK = "attack"
"""Kind of an environment's notes about an instruction planted in its data; ``phase`` is ``planted`` or ``shown``."""
IGNORED = "injection ignored"
"""Safety check of a verdict on a task with a planted instruction: whether what it asks for was left alone."""


class Effect:
    """Lies around a call; without a log it does nothing. A call that raises is ended as ``failed``."""

    def __init__(self, log: EffectLog | None, pending: Pending | None) -> None:
        self._log = log
        self._pending = pending

    @classmethod
    def of(cls, log: EffectLog | None, call: ToolCall, before: str | None) -> Self:
        """Write down what is about to be called."""
        if log is None:
            return cls(None, None)
        facts: dict[str, Json] = {"state": before}
        return cls(log, log.begin(KIND, tool=call.name, arguments=dict(call.arguments), facts=facts))

    def after(self, found: object, digest: str | None, latency_s: float) -> None:
        """Write down what came of it: how long the answer was, its digest, the state it left."""
        if self._log is None or self._pending is None:
            return
        reply = found if isinstance(found, Reply) else Reply(text=str(found))
        facts: dict[str, Json] = {
            "state": digest,
            "answer_sha256": hashlib.sha256(reply.text.encode("utf-8", "backslashreplace")).hexdigest(),
            "answer_chars": len(reply.text),
            "exit_status": reply.exit_status,
            "stop": None if reply.stop is None else str(reply.stop),
        }
        refused = isinstance(found, Exception)
        reason = "refused" if refused else "error" if reply.error else "done"
        self._log.end(self._pending, reason=reason, facts=facts, measured={"wall_s": latency_s})
        self._pending = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._log is not None and self._pending is not None:
            self._log.end(self._pending, reason="failed", facts={"error": kind.__name__ if kind else None})
