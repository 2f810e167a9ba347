"""One rollout of an outside agent: its calls are placed, sampled, logged, then answered."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from kifu.errors import EngineFailure, KifuError, RenderError, UsageError, crossing
from kifu.gateway.allowance import CONTEXT_FULL, Allowance
from kifu.gateway.asked import Asked, Choosing
from kifu.gateway.capture import CALL, Capture, Found, digest_of
from kifu.gateway.captured import Captured, Choice, captured_to_json, problem_of
from kifu.gateway.covering import uncovered
from kifu.gateway.deciding import Decided, decide
from kifu.gateway.laying import lay_bare, lay_call
from kifu.gateway.lineage import Names, name_of
from kifu.gateway.placing import Laid
from kifu.gateway.refusal import Refusal
from kifu.gateway.said import Said
from kifu.gateway.scripted import write_line
from kifu.gateway.settings import Serving
from kifu.gateway.spans import Traces
from kifu.gateway.speech import Manner, speak
from kifu.policy import Constraint, Generation, Request, Sampler
from kifu.records import Durable, Event, Ints, RolloutKey, TaskRef, as_ints
from kifu.render import ChatRenderer, Message


class Log(Protocol):
    """Where calls become durable."""

    def __call__(self, entry: Mapping[str, Any]) -> Durable:
        """Append an entry of the rollout; done when it is on the disk."""
        ...


Constrain = Callable[[Asked, ChatRenderer], Constraint | None]
"""The grammar of an answer, where a call asks for a form."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Desk:
    """What all rollouts of a gateway share."""

    sampler: Sampler
    renderer: ChatRenderer
    serving: Serving
    constrain: Constrain
    keep: Callable[[Generation], None] = lambda generation: None
    """Makes the bitmaps that the supports of a generation name durable."""
    clock: Callable[[], float] = time.time
    running: "set[asyncio.Future[Captured]]" = field(default_factory=set)
    """Calls of all rollouts that are not answered yet; one that has just been may still be here."""

    @property
    def under_way(self) -> int:
        """Calls not answered yet, of all rollouts."""
        return sum(not task.done() for task in self.running)

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        return self.serving.vocabulary or self.renderer.tokenizer.vocab_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """A call that can be sampled."""

    asked: Asked
    turn: int
    body: str
    retry_key: str
    found: Found
    laid: Laid
    said: tuple[Said, ...]
    messages: tuple[Message, ...]
    decided: Decided
    constraints: tuple[Constraint | None, ...]
    """One for each choice; they keep what they have read."""
    asked_at: float
    notes: tuple[Event, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Underway:
    """A call and how often clients came back for it."""

    turn: int
    prompt_ids: Ints
    withheld: str | None
    """Known before it is sampled."""
    overridden: tuple[str, ...]
    asked_at: float
    body: str
    retry_key: str
    task: "asyncio.Future[Captured]"
    claims: int = 0
    delivered: bool = False


@dataclass(slots=True, kw_only=True)
class Counts:
    """What happened beside answered calls."""

    calls: int = 0
    replayed: int = 0
    failed: int = 0
    late: int = 0
    disconnected: int = 0
    unknown_fields: int = 0


class Rollout:
    """Calls of one rollout. Everything runs on one event loop.

    Args:
        desk: shared.
        key: place in the run.
        task: what the agent attempts.
        log: where its calls become durable.
        allowance: what its owner allows.
    """

    def __init__(
        self,
        desk: Desk,
        *,
        key: RolloutKey,
        task: TaskRef,
        log: Log,
        allowance: Allowance | None = None,
    ) -> None:
        self.desk = desk
        self.key = key
        self.task = task
        self.capture = Capture()
        self.counts = Counts()
        self.num_turns = 0
        self.names = Names(key.id)
        self.traces = Traces(log, limit=desk.serving.limits.spans)
        self._log = log
        self._calls: list[Underway] = []
        self._running: set[asyncio.Future[Captured]] = set()
        self.allowance = allowance or Allowance()
        self.sealed = False

    @property
    def under_way(self) -> int:
        """Calls not answered yet."""
        return sum(not task.done() for task in self._running)

    def begin(
        self, asked: Asked, *, body: str, retry: int = 0, retry_key: str = "", notes: tuple[Event, ...] = ()
    ) -> Underway:
        """Place a call and start it, or find the one it repeats.

        Args:
            asked: the call.
            body: digest of its body.
            retry: how often the client's library tried before, by its own count.
            retry_key: the client's own name of the call, equal on retries.
            notes: what else is known of the call; events of its turn.

        Raises:
            Refusal: the rollout is sealed, or the call cannot be answered.
        """
        if self.sealed:
            self.counts.late += 1
            raise Refusal(f"rollout {self.key.id} is sealed; it takes no more calls", status=410, code="sealed")
        again = self._repeated(body, retry=retry, retry_key=retry_key)
        if again is not None:
            again.claims += 1
            self.counts.replayed += 1
            return again
        limits = self.desk.serving.limits
        if self.under_way >= limits.calls_per_rollout:
            raise Refusal(
                f"{self.under_way} calls of rollout {self.key.id} are under way, at most {limits.calls_per_rollout} "
                "may be; wait for one to be answered",
                status=429,
                code="rate_limit_exceeded",
            )
        turns = self.num_turns
        try:
            placed = replace(self._place(asked, body=body, retry_key=retry_key), notes=notes)
            self.allowance.check(asked, turns=turns, tokens=int(placed.laid.token_ids.size))
        except Refusal as refusal:
            self.num_turns = turns
            self.allowance.refused(refusal)
            raise
        call = Underway(
            turn=placed.turn,
            prompt_ids=placed.laid.token_ids,
            withheld=placed.decided.withheld,
            overridden=placed.decided.overridden,
            asked_at=placed.asked_at,
            body=body,
            retry_key=retry_key,
            task=asyncio.create_task(self._answer(placed)),
        )
        self._calls.append(call)
        _begin(call.task, self._running, self.desk.running)
        self.counts.calls += 1
        self.counts.unknown_fields += len(asked.unknown)
        return call

    def restore(self, call: Captured) -> None:
        """Take a call back from the log."""
        self.num_turns = max(self.num_turns, call.turn + call.num_turns)
        self.capture.apply(call)
        done: asyncio.Future[Captured] = asyncio.get_running_loop().create_future()
        done.set_result(call)
        node = self.capture.place(call.turn)
        self._calls.append(
            Underway(
                turn=call.turn,
                prompt_ids=as_ints([]) if node is None else node.context[: node.start],
                withheld=next((choice.withheld for choice in call.choices), None),
                overridden=(),
                asked_at=call.asked_at,
                body=call.body,
                retry_key=call.retry_key,
                task=done,
            )
        )

    async def close(self) -> None:
        """Take no more calls and stop those under way."""
        self.sealed = True
        open_tasks = [task for task in self._running if not task.done()]
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        for context in {self.key.id, *(f"{self.key.id}/turn{turn}" for turn in range(self.num_turns))}:
            self.desk.sampler.release(context)

    def measure(self, asked: Asked) -> int:
        """Tokens of a call's prompt; nothing is recorded.

        Raises:
            Refusal: the call could not be answered.
        """
        num_turns = self.num_turns
        try:
            return int(self._place(asked, body="", retry_key="").laid.token_ids.size)
        finally:
            self.num_turns = num_turns

    def mark(self, turn: int, kind: str, detail: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record what became of an answer after it was logged."""
        if kind == "capture.disconnected":
            self.counts.disconnected += 1
        if not self.sealed:
            self._log({"kind": "event", "turn": turn, "event": kind, "detail": dict(detail)})
            self.capture.mark(turn, Event(kind=kind, detail=dict(detail)))

    def _repeated(self, body: str, *, retry: int, retry_key: str) -> Underway | None:
        """The call a retry repeats: the one with its key, else one with its body that was not delivered."""
        if retry_key:
            found = [call for call in self._calls if call.retry_key == retry_key]
            if any(call.body != body for call in found):
                raise Refusal(
                    f"the idempotency key {retry_key!r} was used with another body; use a new one",
                    code="idempotency_key_in_use",
                )
        else:
            found = [call for call in self._calls if call.body == body] if retry > 0 else []
        found = [call for call in found if not _failed(call.task)]
        return min(found, key=lambda call: (call.delivered, call.claims), default=None)

    def _place(self, asked: Asked, *, body: str, retry_key: str) -> Placed:
        desk, found = self.desk, Found()
        try:
            if asked.prompt is not None:
                found, laid = lay_bare(self.capture, asked.prompt, renderer=desk.renderer)
                news, messages = asked.messages, tuple[Message, ...]()
            else:
                found = self.capture.find(asked.messages, asked.tools_digest)
                news, messages, laid = lay_call(self.capture, asked, found=found, renderer=desk.renderer)
        except RenderError as error:
            raise Refusal(f"messages: {error}", field="messages", code="invalid_prompt") from error
        if found.parent is not None and laid.shared == 0 and found.matched:
            found = Found(depth=found.depth)
        room = desk.serving.max_context - int(laid.token_ids.size)
        if room < 1 or not laid.token_ids.size:
            raise Refusal(
                f"the prompt has {laid.token_ids.size} tokens, the context holds {desk.serving.max_context}; "
                "between one token and one less than the context are needed",
                field="messages",
                code=CONTEXT_FULL,
            )
        if int(laid.token_ids.max()) >= desk.vocabulary:
            raise Refusal(f"prompt: id {int(laid.token_ids.max())} is outside the vocabulary", field="prompt")
        decided = decide(asked, serving=desk.serving, purpose=self.key.purpose, room=room, renderer=desk.renderer)
        constraints = tuple(desk.constrain(asked, desk.renderer) for _ in range(asked.n))
        if found.candidates:
            decided = replace(decided, withheld="ambiguous parent")
        turn, self.num_turns = self.num_turns, self.num_turns + asked.n
        return Placed(
            asked=asked,
            turn=turn,
            body=body,
            retry_key=retry_key,
            found=found,
            laid=laid,
            said=news,
            messages=messages,
            decided=decided,
            constraints=constraints,
            asked_at=desk.clock(),
        )

    async def _answer(self, placed: Placed) -> Captured:
        """Sample, log, apply; the result is durable."""
        desk, limits = self.desk, self.desk.serving.limits
        try:
            async with asyncio.timeout(limits.call_s):
                with crossing(EngineFailure, f"sampling turn {placed.turn} of {self.key.id}"):
                    made = await self._written(placed)
        except (EngineFailure, TimeoutError) as error:
            self.counts.failed += 1
            why = f"not answered within {limits.call_s} s" if isinstance(error, TimeoutError) else str(error)[:2000]
            await self._commit(self._captured(placed, choices=(), error=why))
            if isinstance(error.__cause__, UsageError):
                raise Refusal(str(error.__cause__), code="unsupported_value") from error
            status = 504 if isinstance(error, TimeoutError) else 500
            raise Refusal(why, status=status, code="engine_error") from error
        choices = tuple(self._choice(placed, generation, at) for at, generation in enumerate(made))
        for generation in made:
            if any(support is not None and support.mask is not None for support in generation.support or ()):
                await asyncio.to_thread(desk.keep, generation)
        return await self._commit(self._captured(placed, choices=choices))

    async def _written(self, placed: Placed) -> list[Generation]:
        """The turns of a call, sampled or as the demonstrator has them."""
        desk, lines = self.desk, self.allowance.lines
        if lines is not None:
            tools, sampling = placed.asked.tools, placed.decided.sampling
            version = desk.sampler.version
            return [write_line(lines.take(), desk.renderer, tools=tools, sampling=sampling, version=version)]
        requests = [self._request(placed, at) for at in range(placed.asked.n)]
        return list(await asyncio.gather(*(desk.sampler.sample(request) for request in requests)))

    async def _commit(self, call: Captured) -> Captured:
        try:
            await asyncio.wrap_future(self._log({"kind": "call", "call": captured_to_json(call)}))
        except KifuError as error:
            raise Refusal(
                f"the answer could not be recorded, so it is not given: {error}", status=503, code="not_recorded"
            ) from error
        self.capture.apply(call)
        return call

    def _request(self, placed: Placed, choice: int) -> Request:
        seed = placed.asked.decoding.seed
        stream = f"{self.key.id}/{self.task.id}"
        turn = placed.turn + choice
        if seed is not None:  # equal seeds and contexts give equal answers, whenever they are asked for
            stream, turn = f"{stream}/seed{seed}/{digest_of(placed.laid.token_ids)}/{choice}", 0
        constraint = placed.constraints[choice]
        sampling = replace(
            placed.decided.sampling,
            stream=stream,
            grammar=None if constraint is None else constraint.digest,
        )
        alone = placed.asked.n == 1 and not self.under_way - 1
        return Request(
            context=self.key.id if alone else f"{self.key.id}/turn{placed.turn + choice}",
            token_ids=placed.laid.token_ids,
            sampling=sampling,
            turn=turn,
            max_new_tokens=placed.decided.max_new_tokens,
            constraint=constraint,
            prefix_group="rollouts",
            alternatives=placed.asked.top_logprobs,
        )

    def _choice(self, placed: Placed, generation: Generation, at: int) -> Choice:
        asked = placed.asked
        problem = problem_of(generation, vocabulary=self.desk.vocabulary)
        withheld = placed.decided.withheld or uncovered(
            generation, constraint=placed.constraints[at], vocabulary=self.desk.vocabulary
        )
        if problem is not None:
            withheld = f"invalid generation: {problem}"
        name = name_of(self.key.id, placed.turn + at)
        manner = Manner(tools=() if asked.choosing is Choosing.NONE else asked.tools, stop_strings=asked.decoding.stop)
        choice = speak(self.desk.renderer, generation, manner=manner, name=name, withheld=withheld)
        return choice if self.allowance.lines is None else replace(choice, demonstrated=True, withheld=None)

    def _captured(self, placed: Placed, *, choices: tuple[Choice, ...], error: str | None = None) -> Captured:
        asked, found, laid = placed.asked, placed.found, placed.laid
        detail: dict[str, Any] = {"api": asked.api, "model": asked.model}
        for name in ("inert", "unknown"):
            if getattr(asked, name):
                detail[name] = list(getattr(asked, name))
        if placed.decided.overridden:
            detail["overridden"] = list(placed.decided.overridden)
        if found.depth < len(asked.messages) and (found.parent is not None or self.capture.has_turns):
            detail["differs_at"] = found.depth
        return Captured(
            turn=placed.turn,
            num_turns=asked.n,
            body=placed.body,
            retry_key=placed.retry_key,
            tools_digest=asked.tools_digest,
            prompt=None if asked.prompt is None else asked.prompt if isinstance(asked.prompt, str) else "",
            parent=None if found.parent is None else found.parent.turn,
            ambiguous=found.candidates,
            shared=laid.shared,
            respelled=found.respelled,
            pieces=laid.pieces,
            context=digest_of(laid.token_ids),
            said=placed.said,
            messages=placed.messages,
            choices=choices,
            events=(Event(kind=CALL, detail=detail), *placed.notes),
            error=error,
            asked_at=placed.asked_at,
            answered_at=self.desk.clock(),
        )


def _failed(task: "asyncio.Future[Captured]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None or task.result().error is not None)


def _begin(task: "asyncio.Future[Captured]", *running: "set[asyncio.Future[Captured]]") -> None:
    """Count a call until it is answered; the calls ever made are not gone through to know how many are open."""
    for calls in running:
        calls.add(task)
        task.add_done_callback(calls.discard)
    task.add_done_callback(_looked_at)


def _looked_at(task: "asyncio.Future[Captured]") -> None:
    """Whoever asked may be gone; the failure is in the log."""
    if not task.cancelled():
        task.exception()
