"""One episode under way: the world and the policy as an agent sees them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kifu.envs import Task, ToolSpec
from kifu.envs.calling.guard import Called, GuardedEnvironment
from kifu.errors import EngineFailure, EnvironmentFailure, crossing
from kifu.policy import Generation, Request, Sampler, ScoreRequest
from kifu.records import (
    Branch,
    Estimate,
    Event,
    Finish,
    Ints,
    Json,
    Origin,
    Outcome,
    RolloutKey,
    StopReason,
    ToolCall,
    ToolResult,
    as_ints,
)
from kifu.records.turns import TOKEN_ENTROPY
from kifu.render import Message, Parsed, ToolView, TrustForm, least_trust, with_trust
from kifu.rollout.facts import Prompt
from kifu.rollout.history import Shown, relay
from kifu.rollout.log import EpisodeLog, OpenTurn
from kifu.rollout.setting import Setting
from kifu.rollout.toolbox import Toolbox
from kifu.sandbox import EffectLog

EFFECTS_HEAD = "effects.head"
"""Event of a turn: chain, digest and count of the last line of the log of effects when its calls had returned."""
EFFECTS_END = "effects.end"
"""Event of an episode's last turn: the same when the world was judged and closed; nothing is added after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A demonstrator's calls, one a turn, written instead of sampled."""

    calls: tuple[ToolCall, ...]


class _Written(NamedTuple):
    token_ids: Ints
    finish: Finish
    estimates: tuple[Estimate, ...]


def tool_views(specs: Sequence[ToolSpec]) -> tuple[ToolView, ...]:
    """The environment's tools as a renderer takes them."""
    return tuple(
        ToolView(name=spec.name, description=spec.description, parameters=spec.parameters, command=spec.command)
        for spec in specs
    )


class Session:
    """Implements `kifu.agents.World` and `kifu.agents.PolicyHandle`.

    Args:
        setting: shared by every rollout of the purpose.
        writer: the sampler, or a demonstrator's script.
        guard: the environment.
        key: place in the run.
        task: what is attempted.
    """

    def __init__(
        self, setting: Setting, *, writer: Sampler | Script, guard: GuardedEnvironment, key: RolloutKey, task: Task
    ) -> None:
        self._setting = setting
        self._writer = writer
        self._guard = guard
        self._key = key
        self._task = task
        self.toolbox = Toolbox(guard, setting.agent.memory)
        self.log = EpisodeLog()
        self.outcome: Outcome | None = None
        self.branch: Branch | None = None
        self.keeping: list[asyncio.Future[str]] = []
        """States on their way to the disk; a record names none that is not there."""
        self.generation_s = 0.0
        self.environment_s = 0.0

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self.outcome is not None

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """Tools as they stand now."""
        return self.toolbox.specs

    @property
    def contexts(self) -> list[str]:
        """Names of every context the sampler may have kept."""
        return [f"{self._key.id}/tape{tape}" for tape in range(self.log.tape.index + 1)]

    async def begin(self) -> None:
        """Reset the world and lay the prompt."""
        began = time.perf_counter()
        observation = await self._guard.reset(self._task, self._task.seed)
        self.environment_s += time.perf_counter() - began
        system = self._guard.instructions if self._setting.instructions is None else self._setting.instructions
        opening = [Message(role="system", content=system)] if system else []
        first = with_trust(observation.text, observation.trust, self._setting.trust)
        self.log.messages = [*opening, *self._setting.examples, Message(role="user", content=first)]
        self.log.opening = len(self.log.messages)
        with crossing(EnvironmentFailure, f"showing the first observation of {self._task.id}"):
            self.log.lay(self._setting.renderer.start(self.log.messages, tool_views(self.tools)))

    async def write(self) -> Parsed:
        """Let the policy write one turn; at a limit the episode ends instead and the text is empty."""
        self.log.close_turn()
        turns = self.log.turns
        reached = self._setting.limits.reached(
            turns=len(turns), tokens=self.log.tape.position, after_result=bool(turns and turns[-1].results)
        )
        if reached is not None:
            self._end(*reached)
            return Parsed(text="")
        views, began, start = tool_views(self.tools), time.perf_counter(), self.log.tape.position
        potential, state_key = self._guard.potential(), self._guard.state_key()
        if isinstance(self._writer, Script):
            written = _scripted(self._setting, self._writer, log=self.log, views=views)
        else:
            written = await self._sampled(self._writer, views)
        if written is None:
            self._end(StopReason.NATURAL_END, "the script is over")
            return Parsed(text="")
        self.generation_s += time.perf_counter() - began
        if written.finish is Finish.CONTEXT and not written.token_ids.size:
            self._end(StopReason.CONTEXT_LIMIT, f"no room after {start} tokens")
            return Parsed(text="")
        parsed = self._setting.renderer.parse(written.token_ids, views)
        self.log.prompts.append(Prompt(messages=len(self.log.messages), tools=views))
        self.log.messages.append(
            Message(role="assistant", content=parsed.text, reasoning=parsed.reasoning, calls=parsed.calls)
        )
        self.log.spoken[len(self.log.messages) - 1] = written.token_ids
        self.log.open = OpenTurn(
            tape=self.log.tape.index,
            start=start,
            stop=self.log.tape.position,
            parsed=parsed,
            finish=written.finish,
            began=began,
            estimates=written.estimates,
            potential=potential,
            state_key=state_key,
            executed=parsed.calls,
        )
        limit, position = self._setting.limits.tokens, self.log.tape.position
        if written.finish is Finish.CONTEXT:
            self._end(StopReason.CONTEXT_LIMIT, f"no room after {position} tokens")
        elif (
            written.finish is Finish.LENGTH
            and limit is not None
            and position >= limit
            and (parsed.calls or parsed.error is not None)
        ):
            # Cut by the collector in the middle of a turn: the world must not punish what was not finished.
            self._end(StopReason.TOKEN_LIMIT, f"the context holds {position} tokens, the collector allows {limit}")
        return parsed

    async def call(self, calls: Sequence[ToolCall], *, rewriter: str | None = None) -> list[ToolResult]:
        """Execute the calls of the last turn in order; stops at the call that ends the episode."""
        turn = self.log.written
        turn.executed, turn.rewriter = tuple(calls), rewriter
        results: list[ToolResult] = []
        for index, call in enumerate(calls):
            answer, event = await self.toolbox.call(call, index=index)
            turn.events += [] if event is None else [event]
            results.append(self._take(index, answer))
            if self.ended:
                break
        if self._guard.effects is not None:
            turn.events.append(_head_of(self._guard.effects, EFFECTS_HEAD))
        return results

    async def reject(self, error: str) -> ToolResult:
        """Let the environment answer a last turn that could not be read as a call."""
        return self._take(None, await self._guard.reject(error))

    async def finish(self, text: str) -> None:
        """The policy answered without a call; where the collector cut the answer short, the end is the collector's."""
        await self._guard.answered(text)
        turn = self.log.written
        if turn.finish is Finish.LENGTH:
            self._end(StopReason.TOKEN_LIMIT, f"the answer was cut after {turn.stop - turn.start} tokens")
        else:
            self._end(StopReason.NATURAL_END)

    def show(self, texts: Sequence[str]) -> None:
        """Append observations to the context, marked by the trust of the results they tell of."""
        results = () if self.log.open is None else self.log.open.results
        texts = shown(texts, results, form=self._setting.trust)
        messages = [*self.log.messages, *(Message(role="tool", content=text) for text in texts)]
        told = None if self._setting.history is None else self._setting.history.shown(messages, self.log.opening)
        if told is not None:
            with crossing(EnvironmentFailure, f"showing the results of turn {len(self.log.turns)}"):
                _show_shortened(self._setting, told, log=self.log, views=tool_views(self.tools))
            self.log.messages = messages
            return
        renderer, ids = self._setting.renderer, self.log.ids
        ended = bool(ids.size) and int(ids[-1]) in renderer.stop_ids
        with crossing(EnvironmentFailure, f"showing the results of turn {len(self.log.turns)}"):
            extension = renderer.extend(ids, self.log.messages, texts, ended=ended, tools=tool_views(self.tools))
        if extension.fork_at is not None:
            self.log.fork(extension.fork_at, by="template")
        self.log.close_turn()
        self.log.lay(extension.pieces)
        self.log.messages = messages

    async def final_value(self) -> float | None:
        """V(h_T) of the context as it stands, under the weights now loaded; None without a critic."""
        if isinstance(self._writer, Script):
            return None
        ids = self.log.ids
        request = ScoreRequest(
            token_ids=as_ints([*ids.tolist(), 0]), positions=as_ints([ids.size]), sampling=self._setting.sampling
        )
        with crossing(EngineFailure, f"valuing the cut of {self._key.id}"):
            scores = (await self._writer.score([request]))[0]
        return None if scores.value is None else float(scores.value[0])

    def _take(self, index: int | None, answer: Called) -> ToolResult:
        result = self.log.written.take(index, answer)
        self.environment_s += answer.latency_s
        if answer.reply.stop is not None:
            self._end(answer.reply.stop, answer.reply.text)
        return result

    def _end(self, reason: StopReason, detail: str = "") -> None:
        if self.outcome is None:
            self.outcome = Outcome(reason=reason, detail=detail)

    async def _sampled(self, sampler: Sampler, views: tuple[ToolView, ...]) -> _Written:
        request, turn = self._request(views), len(self.log.turns)
        with crossing(EngineFailure, f"sampling turn {turn} of {self._key.id}"):
            generation = await sampler.sample(request)
            self.log.tape.append_generation(
                generation.token_ids,
                sampled=generation.sampled,
                logprobs=generation.logprobs,
                policy_version=generation.policy_version,
                sampling=generation.sampling,
                support=generation.support,
                turn=turn,
            )
        kept = self._setting.token_entropies
        return _Written(generation.token_ids, generation.finish, _estimates(generation, kept=kept))

    def _request(self, views: tuple[ToolView, ...]) -> Request:
        setting, limits = self._setting, self._setting.limits
        with crossing(EnvironmentFailure, "constraining the turn to the tools of this phase"):
            constraint = setting.renderer.constraint(views, self.toolbox.allowed) if setting.constrained else None
        room = setting.max_new_tokens
        if limits.tokens is not None:
            room = min(room, limits.tokens - self.log.tape.position)
        sampling = replace(
            setting.sampling,
            stream=f"{self._key.id}/{self._task.id}",
            stop_ids=setting.renderer.stop_ids,
            grammar=None if constraint is None else constraint.digest,
            dialect=setting.renderer.digests.parser,
        )
        return Request(
            context=self.contexts[-1],
            token_ids=self.log.ids,
            sampling=sampling,
            turn=len(self.log.turns),
            max_new_tokens=room,
            constraint=constraint,
            prefix_group="rollouts",
        )


def _show_shortened(setting: Setting, told: Shown, *, log: EpisodeLog, views: tuple[ToolView, ...]) -> None:
    """Lay a shortened conversation anew, on a tape of its own that shares what stood before the first turn."""
    relaid = relay(
        setting.renderer,
        told.messages,
        before=log.ids,
        opening=log.turns[0].start if log.turns else log.written.start,
        tools=views,
        known={to: log.spoken[at] for to, at in enumerate(told.places) if at in log.spoken},
    )
    if log.open is not None:
        log.open.events.append(told.event)
    log.fork(relaid.shared, by=str(told.event.detail["by"]))
    log.close_turn()
    log.lay(relaid.pieces)


def shown(texts: Sequence[str], results: Sequence[ToolResult], *, form: TrustForm | None) -> list[str]:
    """Texts as they stand in the context.

    Args:
        texts: what the agent shows.
        results: what the world answered; where there is not one for each text, the least trusted marks them all.
        form: of the marks.
    """
    labels = [result.trust for result in results]
    if len(labels) != len(texts):
        labels = [least_trust(labels)] * len(texts)
    return [with_trust(text, label, form) for text, label in zip(texts, labels, strict=True)]


def settle(session: Session, guard: GuardedEnvironment) -> None:
    """Close the last turn, naming in it the last line of the log of effects: nothing more is written to it."""
    session.log.close_turn()
    turns, shared = session.log.turns, 0 if session.branch is None else session.branch.turn
    if guard.effects is not None and len(turns) > shared:
        end = _head_of(guard.effects, EFFECTS_END)
        turns[-1] = replace(turns[-1], events=(*turns[-1].events, end))


def _head_of(log: EffectLog, kind: str) -> Event:
    head = log.head
    detail: dict[str, Json] = {"chain": head.chain, "digest": head.digest, "count": head.count}
    return Event(kind=kind, detail=detail)


def _scripted(setting: Setting, script: Script, *, log: EpisodeLog, views: tuple[ToolView, ...]) -> _Written | None:
    turn = len(log.turns)
    if turn >= len(script.calls):
        return None
    ids = setting.renderer.compose([script.calls[turn]], views)
    log.tape.append(Origin.DEMONSTRATION, ids, turn=turn)
    return _Written(ids, Finish.STOP, ())


def _estimates(generation: Generation, *, kept: int) -> tuple[Estimate, ...]:
    """What the sampler says of its turn; ``kept`` is the number of tokens whose entropies are wanted."""
    found = [("value", generation.value), ("entropy", generation.entropy)]
    if kept and generation.entropies is not None:
        found += [(TOKEN_ENTROPY, float(value)) for value in generation.entropies[generation.sampled][:kept]]
    version = generation.policy_version
    return tuple(Estimate(name=name, value=value, policy_version=version) for name, value in found if value is not None)
