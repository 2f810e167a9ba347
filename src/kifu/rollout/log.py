"""What is being written down about one episode: the tape underneath, the conversation, the turns, the open turn."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from kifu.envs.calling.guard import Called
from kifu.records import (
    Action,
    Estimate,
    Event,
    Finish,
    Ints,
    Tape,
    ToolCall,
    ToolResult,
    Turn,
)
from kifu.records.builder import TapeBuilder
from kifu.render import Message, Parsed, Piece
from kifu.rollout.facts import Prompt


@dataclass(slots=True, kw_only=True)
class OpenTurn:
    """A turn whose results are still coming in."""

    tape: int
    start: int
    stop: int
    parsed: Parsed
    finish: Finish
    began: float
    """Monotonic seconds."""
    estimates: tuple[Estimate, ...] = ()
    potential: float | None = None
    state_key: str | None = None
    executed: tuple[ToolCall, ...] = ()
    rewriter: str | None = None
    results: list[ToolResult] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    duration: float = 0.0
    events: list[Event] = field(default_factory=list)

    def take(self, index: int | None, answer: Called) -> ToolResult:
        """Book one answer of the environment; ``index`` is that of the executed call."""
        reply = answer.reply
        result = ToolResult(
            call=index,
            text=reply.text,
            trust=reply.trust,
            exit_status=reply.exit_status,
            error=reply.error,
            latency_s=answer.latency_s,
            digest_before=answer.digest_before,
            cut_bytes=answer.cut_bytes,
        )
        self.results.append(result)
        self.duration += reply.duration
        for name, value in reply.rewards.items():
            self.rewards[name] = self.rewards.get(name, 0.0) + value
        return result

    def closed(self, index: int) -> Turn:
        """The turn as it goes into the record."""
        return Turn(
            index=index,
            tape=self.tape,
            start=self.start,
            stop=self.stop,
            text=self.parsed.text,
            finish=self.finish,
            action=Action(
                sampled=self.parsed.calls,
                executed=self.executed,
                rewriter=self.rewriter,
                parse_error=self.parsed.error,
            ),
            results=tuple(self.results),
            rewards=self.rewards,
            potential=self.potential,
            seconds=time.perf_counter() - self.began,
            duration=self.duration or 1.0,
            state_key=self.state_key,
            events=tuple(self.events),
            estimates=self.estimates,
        )


class EpisodeLog:
    """Grows by appending; the ids of a context are never computed a second time."""

    def __init__(self) -> None:
        self.tape = TapeBuilder()
        """The one the present context is written on."""
        self.turns: list[Turn] = []
        self.messages: list[Message] = []
        self.opening = 0
        """Messages before the first turn."""
        self.spoken: dict[int, Ints] = {}
        """Ids of the policy's turns by the index of their message."""
        self.open: OpenTurn | None = None
        self.prompts: list[Prompt] = []
        """What stood before every turn."""

    @property
    def ids(self) -> Ints:
        """``[T]`` the present context."""
        return self.tape.ids

    @property
    def written(self) -> OpenTurn:
        """The turn the policy wrote last."""
        assert self.open is not None, "an agent acts after it let the policy write"
        return self.open

    def lay(self, pieces: Iterable[Piece]) -> None:
        """Append tokens nobody sampled; they belong to the turn that is written next."""
        for piece in pieces:
            self.tape.append(piece.origin, piece.token_ids, turn=len(self.turns))

    def fork(self, at: int, *, by: str) -> None:
        """Go on with a tape that shares the first ``at`` tokens: the information state changes, and says so."""
        if self.open is not None:
            self.open.events.append(Event(kind="context.fork", detail={"at": at, "by": by}))
        self.tape = self.tape.fork(at)

    def close_turn(self) -> None:
        """Take the open turn in, if there is one."""
        turn, self.open = self.open, None
        if turn is not None:
            self.turns.append(turn.closed(len(self.turns)))

    def build(self) -> tuple[Tape, ...]:
        """Every tape of the episode."""
        return self.tape.build()
