"""One episode being recorded: the world and the policy as an agent sees them, and the tape that grows underneath."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kifu.envs import Task, ToolSpec
from kifu.envs.guard import Called, GuardedEnvironment
from kifu.errors import EngineFailure, crossing
from kifu.policy import Generation, Request, Sampler, ScoreRequest
from kifu.records import (
    Action,
    Estimate,
    Event,
    Finish,
    Ints,
    Origin,
    Outcome,
    RolloutKey,
    StopReason,
    ToolCall,
    ToolResult,
    Turn,
    as_ints,
)
from kifu.records.builder import TapeBuilder
from kifu.render import Message, Parsed, ToolView
from kifu.rollout.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A demonstrator's calls, one a turn, written instead of sampled."""

    calls: tuple[ToolCall, ...]


def tool_views(specs: Sequence[ToolSpec]) -> tuple[ToolView, ...]:
    """The environment's tools as a renderer takes them."""
    return tuple(
        ToolView(name=spec.name, description=spec.description, parameters=spec.parameters, command=spec.command)
        for spec in specs
    )


class _Written(NamedTuple):
    token_ids: Ints
    finish: Finish
    estimates: tuple[Estimate, ...]


@dataclass(slots=True, kw_only=True)
class _OpenTurn:
    """A turn whose results are still coming in."""

    start: int
    stop: int
    tape: int
    text: str
    finish: Finish
    parsed: Parsed
    estimates: tuple[Estimate, ...]
    potential: float | None
    state_key: str | None
    began: float
    executed: tuple[ToolCall, ...] = ()
    rewriter: str | None = None
    results: list[ToolResult] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    duration: float = 0.0
    events: list[Event] = field(default_factory=list)
    seconds: float = 0.0


class Session:
    """Implements `kifu.agents.World` and `kifu.agents.PolicyHandle` over one tape builder."""

    def __init__(
        self, setting: Setting, *, writer: "Sampler | Script", guard: GuardedEnvironment, key: RolloutKey, task: Task
    ) -> None:
        self._setting = setting
        self._writer = writer
        self._guard = guard
        self._key = key
        self._task = task
        self._stream = f"{key.id}/{task.id}"
        self.builder = TapeBuilder()
        self.turns: list[Turn] = []
        self.outcome: Outcome | None = None
        self.generation_s = 0.0
        self.environment_s = 0.0
        self._history: list[Message] = []
        self._open: _OpenTurn | None = None

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self.outcome is not None

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """Tools as they stand now."""
        return self._guard.tools()

    @property
    def contexts(self) -> list[str]:
        """Names of every context the sampler may have kept."""
        return [self._context(tape) for tape in range(self.builder.index + 1)]

    def _context(self, tape: int) -> str:
        return f"{self._key.id}/tape{tape}"

    async def begin(self) -> None:
        """Reset the world and lay the prompt."""
        began = time.perf_counter()
        observation = await self._guard.reset(self._task, self._task.seed)
        self.environment_s += time.perf_counter() - began
        system = self._setting.instructions
        if system is None:
            system = self._guard.instructions
        opening = [Message(role="system", content=system)] if system else []
        self._history = [*opening, *self._setting.examples, Message(role="user", content=observation.text)]
        for piece in self._setting.renderer.start(self._history, self._views()):
            self.builder.append(piece.origin, piece.token_ids, turn=0)

    def _views(self) -> tuple[ToolView, ...]:
        return tool_views(self._guard.tools())

    def _end(self, reason: StopReason, detail: str = "") -> None:
        if self.outcome is None:
            self.outcome = Outcome(reason=reason, detail=detail)

    def _limit(self) -> tuple[StopReason, str] | None:
        limits, done, tokens = self._setting.limits, len(self.turns), self.builder.position
        if limits.task_turns is not None and done >= limits.task_turns:
            return StopReason.TASK_BUDGET, f"the task allows {limits.task_turns} turns"
        if limits.turns is not None and done >= limits.turns:
            return StopReason.TURN_LIMIT, f"the collector allows {limits.turns} turns"
        if limits.tokens is not None and tokens >= limits.tokens:
            overflowed = bool(self.turns and self.turns[-1].results)
            reason = StopReason.TOOL_RESULT_OVERFLOW if overflowed else StopReason.TOKEN_LIMIT
            return reason, f"the context holds {tokens} tokens, the collector allows {limits.tokens}"
        return None

    async def write(self) -> Parsed:
        """Let the policy write one turn; at a limit the episode ends instead and the text is empty."""
        self._close_turn()
        reached = self._limit()
        if reached is not None:
            self._end(*reached)
            return Parsed(text="")
        views, began = self._views(), time.perf_counter()
        potential, state_key = self._guard.potential(), self._guard.state_key()
        start, tape = self.builder.position, self.builder.index
        written = await self._sampled(views) if not isinstance(self._writer, Script) else self._scripted(views)
        if written is None:
            self._end(StopReason.NATURAL_END, "the script is over")
            return Parsed(text="")
        self.generation_s += time.perf_counter() - began
        parsed = self._setting.renderer.parse(written.token_ids, views)
        self._history.append(
            Message(role="assistant", content=parsed.text, reasoning=parsed.reasoning, calls=parsed.calls)
        )
        self._open = _OpenTurn(
            start=start,
            stop=self.builder.position,
            tape=tape,
            text=parsed.text,
            finish=written.finish,
            parsed=parsed,
            estimates=written.estimates,
            potential=potential,
            state_key=state_key,
            began=began,
            executed=parsed.calls,
        )
        if written.finish is Finish.CONTEXT:
            self._end(StopReason.CONTEXT_LIMIT, f"no room after {self.builder.position} tokens")
        return parsed

    async def _sampled(self, views: tuple[ToolView, ...]) -> "_Written":
        assert not isinstance(self._writer, Script)
        request = self._request(views)
        with crossing(EngineFailure, f"sampling turn {len(self.turns)} of {self._key.id}"):
            generation = await self._writer.sample(request)
        self.builder.append_generation(
            generation.token_ids,
            sampled=generation.sampled,
            logprobs=generation.logprobs,
            policy_version=generation.policy_version,
            sampling=generation.sampling,
            support=generation.support,
            turn=len(self.turns),
        )
        return _Written(generation.token_ids, generation.finish, _estimates(generation))

    def _scripted(self, views: tuple[ToolView, ...]) -> "_Written | None":
        assert isinstance(self._writer, Script)
        if len(self.turns) >= len(self._writer.calls):
            return None
        ids = self._setting.renderer.compose([self._writer.calls[len(self.turns)]], views)
        self.builder.append(Origin.DEMONSTRATION, ids, turn=len(self.turns))
        return _Written(ids, Finish.STOP, ())

    def _request(self, views: tuple[ToolView, ...]) -> Request:
        setting, limits = self._setting, self._setting.limits
        constraint = setting.renderer.constraint(views, self._guard.allowed()) if setting.constrained else None
        room = setting.max_new_tokens
        if limits.tokens is not None:
            room = min(room, limits.tokens - self.builder.position)
        sampling = replace(
            setting.sampling,
            stream=self._stream,
            stop_ids=setting.renderer.stop_ids,
            grammar=None if constraint is None else constraint.digest,
            dialect=setting.renderer.digests.parser,
        )
        return Request(
            context=self._context(self.builder.index),
            token_ids=self.builder.ids,
            sampling=sampling,
            turn=len(self.turns),
            max_new_tokens=room,
            constraint=constraint,
            prefix_group=f"{self._key.purpose}/{self._key.step}/{self._key.group}",
        )

    async def call(self, calls: Sequence[ToolCall], *, rewriter: str | None = None) -> list[ToolResult]:
        """Execute the calls of the last turn in order; stops at the call that ends the episode."""
        turn = self._open
        assert turn is not None, "an agent calls tools after it let the policy write"
        turn.executed, turn.rewriter = tuple(calls), rewriter
        results: list[ToolResult] = []
        for index, call in enumerate(calls):
            results.append(self._take(turn, index, await self._guard.call(call)))
            if self.ended:
                break
        return results

    async def reject(self, error: str) -> ToolResult:
        """Let the environment answer a last turn that could not be read as a call."""
        turn = self._open
        assert turn is not None, "an agent rejects a turn after it let the policy write"
        return self._take(turn, None, await self._guard.reject(error))

    def _take(self, turn: _OpenTurn, index: int | None, answer: Called) -> ToolResult:
        """Book one answer of the environment."""
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
        self.environment_s += answer.latency_s
        turn.results.append(result)
        turn.duration += reply.duration
        for name, value in reply.rewards.items():
            turn.rewards[name] = turn.rewards.get(name, 0.0) + value
        if reply.stop is not None:
            self._end(reply.stop, reply.text)
        return result

    async def finish(self, text: str) -> None:
        """The policy answered without a call."""
        await self._guard.answered(text)
        self._end(StopReason.NATURAL_END)

    def show(self, texts: Sequence[str]) -> None:
        """Append observations to the context."""
        turn = self._open
        assert turn is not None, "an agent shows observations after it let the policy write"
        ids = self.builder.ids
        ended = bool(ids.size) and int(ids[-1]) in self._setting.renderer.stop_ids
        extension = self._setting.renderer.extend(ids, self._history, texts, ended=ended, tools=self._views())
        if extension.fork_at is not None:
            turn.events.append(Event(kind="context.fork", detail={"at": extension.fork_at, "by": "template"}))
            self.builder = self.builder.fork(extension.fork_at)
        self._close_turn()
        for piece in extension.pieces:
            self.builder.append(piece.origin, piece.token_ids, turn=len(self.turns))
        self._history.extend(Message(role="tool", content=text) for text in texts)

    def _close_turn(self) -> None:
        turn, self._open = self._open, None
        if turn is None:
            return
        self.turns.append(
            Turn(
                index=len(self.turns),
                tape=turn.tape,
                start=turn.start,
                stop=turn.stop,
                text=turn.text,
                finish=turn.finish,
                action=Action(
                    sampled=turn.parsed.calls,
                    executed=turn.executed,
                    rewriter=turn.rewriter,
                    parse_error=turn.parsed.error,
                ),
                results=tuple(turn.results),
                rewards=turn.rewards,
                potential=turn.potential,
                seconds=time.perf_counter() - turn.began,
                duration=turn.duration or 1.0,
                state_key=turn.state_key,
                events=tuple(turn.events),
                estimates=turn.estimates,
            )
        )

    def close(self) -> None:
        """Take the last turn in."""
        self._close_turn()

    async def final_value(self) -> float | None:
        """V(h_T) of the context as it stands, under the weights now loaded; None without a critic."""
        if isinstance(self._writer, Script):
            return None
        ids = self.builder.ids
        request = ScoreRequest(
            token_ids=as_ints([*ids.tolist(), 0]),
            positions=as_ints([ids.size]),
            sampling=self._setting.sampling,
        )
        with crossing(EngineFailure, f"valuing the cut of {self._key.id}"):
            scores = (await self._writer.score([request]))[0]
        return None if scores.value is None else float(scores.value[0])


def _estimates(generation: Generation) -> tuple[Estimate, ...]:
    found = []
    if generation.value is not None:
        found.append(Estimate(name="value", value=generation.value, policy_version=generation.policy_version))
    if generation.entropy is not None:
        found.append(Estimate(name="entropy", value=generation.entropy, policy_version=generation.policy_version))
    return tuple(found)
