"""Beginning a rollout at a turn of another one: the world put back, the tape shared, the agent brought up to it.

Environment and tape are forked together. The world is restored from the snapshot taken before the turn, or, where it
cannot make one, led there by the same actions with every answer and digest compared. Nothing of the shared prefix is
sampled or encoded again; the agent lives through it once more on what is recorded.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kifu.envs import Environment, SnapshotKind, ToolSpec
from kifu.envs.calling.guard import GuardedEnvironment
from kifu.envs.contract import canonical_state, digest_state
from kifu.envs.segments import read_state
from kifu.errors import AgentFailure, EnvironmentFailure, ExperimentError
from kifu.records import Branch, Event, Origin, Span, ToolCall, ToolResult, Trajectory, Turn
from kifu.records.builder import TapeBuilder
from kifu.records.turns import STATE_KEPT
from kifu.render import Message, Parsed
from kifu.rollout.facts import Prompt
from kifu.rollout.session import EFFECTS_END, EFFECTS_HEAD, Session, shown, tool_views
from kifu.rollout.setting import Branchable, Setting
from kifu.rollout.toolbox import Toolbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The turn of another rollout where one begins."""

    parent: Trajectory
    turn: int
    """The first turn to be written anew."""
    chosen_by: str
    """Rule that chose the point, for the record."""
    is_lent: bool = False
    """Whether the parent is a record of another run. Its state is reached by its actions, and what its policy wrote
    stands on the tape as a demonstration's: no weights of this run sampled it."""


_KEPT_THERE = (STATE_KEPT, EFFECTS_HEAD, EFFECTS_END)


def as_told(parent: Trajectory) -> Trajectory:
    """A record of another run as what a rollout of this one goes on from: nothing of it was sampled or estimated here.

    Figures, kept states and the log of effects of the other run stay with its record.
    """

    def told(span: Span) -> Span:
        if span.origin is not Origin.POLICY:
            return span
        return Span(origin=Origin.DEMONSTRATION, turn=span.turn, token_ids=span.token_ids)

    tapes = tuple(replace(tape, spans=tuple(told(span) for span in tape.spans)) for tape in parent.tapes)
    turns = (
        replace(turn, estimates=(), events=tuple(event for event in turn.events if event.kind not in _KEPT_THERE))
        for turn in parent.turns
    )
    return replace(parent, tapes=tapes, turns=tuple(turns))


def check_branchable(environment: type[Environment]) -> SnapshotKind:
    """How rollouts in an environment can branch.

    Raises:
        ExperimentError: its state can neither be restored nor be reached again in a way that can be checked.
    """
    declared, name = environment.capabilities, environment.id or environment.__name__
    refused = f"environment `{name}`: rollouts cannot branch in it: "
    match declared.snapshot:
        case SnapshotKind.STATE | SnapshotKind.BYTES:
            return declared.snapshot
        case SnapshotKind.REPLAY if not declared.deterministic:
            raise ExperimentError(f"{refused}it is not deterministic, so the same actions may lead elsewhere")
        case SnapshotKind.REPLAY if environment.state_digest is Environment.state_digest:
            raise ExperimentError(
                f"{refused}it declares snapshot = replay and defines no `state_digest`, so nobody could tell whether "
                "the same actions led to the same state"
            )
        case SnapshotKind.REPLAY:
            return declared.snapshot
        case _:
            raise ExperimentError(
                f"{refused}it declares no snapshot. Define `snapshot` and `restore`, or declare snapshot = replay with "
                "a `state_digest`, or choose a method that does not branch"
            )


class Trail:
    """The world and the policy of a session that branches leave from, and that may itself have begun at one.

    Implements `kifu.agents.World` and `kifu.agents.PolicyHandle`. While the shared turns last, the agent gets what is
    recorded; then the session goes on. Tools are those of the branch point from the beginning.

    Args:
        setting: of the rollout.
        session: begun, and where ``told`` is given set to the end of those turns.
        guard: its environment.
        told: turns shared with the parent.
        writings: of those turns, as the renderer reads them.
    """

    def __init__(
        self,
        setting: Setting,
        session: Session,
        guard: GuardedEnvironment,
        *,
        told: Sequence[Turn] = (),
        writings: Sequence[Parsed] = (),
    ) -> None:
        assert setting.branchable is not None
        self._setting = setting
        self._branchable: Branchable = setting.branchable
        self._session = session
        self._guard = guard
        self._told = told
        self._writings = writings
        self._at = 0
        self._showing = bool(told)
        """Whether what is shown stands on the shared tape already."""

    @classmethod
    async def begin(
        cls, setting: Setting, session: Session, *, guard: GuardedEnvironment, departure: Departure | None
    ) -> "Trail":
        """Go to where the rollout begins.

        Raises:
            EnvironmentFailure: the state there could not be reached.
        """
        if departure is None:
            return cls(setting, session, guard)
        began = time.perf_counter()
        parent = as_told(departure.parent) if departure.is_lent else departure.parent
        where = f"branching at turn {departure.turn} of {parent.id}"
        told, turn = parent.turns[: departure.turn], parent.turns[departure.turn]
        if parent.tape_ids(0)[: session.log.ids.size].tolist() != session.log.ids.tolist():
            raise EnvironmentFailure(f"{where}: the task now begins with another prompt")
        assert setting.branchable is not None
        how, digest = await _put_back(setting.branchable, guard, session.toolbox, told=told, turn=turn, where=where)
        session.environment_s += time.perf_counter() - began
        views, renderer = tool_views(session.tools), setting.renderer
        writings = [renderer.parse(parent.tape_ids(old.tape)[old.start : old.stop], views) for old in told]
        session.log.tape = TapeBuilder.at(parent.tapes, tape=turn.tape, position=turn.start)
        session.log.turns = list(told)
        session.branch = Branch(
            tree=parent.id if parent.branch is None else parent.branch.tree,
            parent=parent.id,
            turn=departure.turn,
            chosen_by=departure.chosen_by,
            restored_by=how,
            digest=digest,
        )
        return cls(setting, session, guard, told=told, writings=writings)

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return not self._showing and self._session.ended

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """Tools as they stand now."""
        return self._session.tools

    async def write(self) -> Parsed:
        """The next shared turn, or let the policy write one."""
        if self._at < len(self._told):
            turn, seen = self._told[self._at], self._writings[self._at]
            self._at += 1
            message = Message(role="assistant", content=turn.text, reasoning=seen.reasoning, calls=turn.action.sampled)
            log = self._session.log
            log.prompts.append(Prompt(messages=len(log.messages), tools=tool_views(self.tools)))
            log.messages.append(message)
            return Parsed(
                text=turn.text, calls=turn.action.sampled, error=turn.action.parse_error, reasoning=seen.reasoning
            )
        self._showing = False
        note = await self._keep()
        parsed = await self._session.write()
        if self._session.log.open is not None:
            self._session.log.open.events.append(note)
        return parsed

    async def call(self, calls: Sequence[ToolCall], *, rewriter: str | None = None) -> list[ToolResult]:
        """Execute the calls of the last turn, or take what they gave before."""
        if not self._showing:
            return await self._session.call(calls, rewriter=rewriter)
        turn = self._told[self._at - 1]
        if tuple(calls) != turn.action.executed:
            raise AgentFailure(f"turn {turn.index}: the agent calls something else than it did before the branch")
        return list(turn.results)

    async def reject(self, error: str) -> ToolResult:
        """Let the environment answer a last turn that could not be read, or take what it answered before."""
        if not self._showing:
            return await self._session.reject(error)
        return self._told[self._at - 1].results[0]

    async def finish(self, text: str) -> None:
        """The policy answered without a call."""
        if self._showing:
            raise AgentFailure(f"turn {self._at - 1}: the agent finishes where it went on before the branch")
        await self._session.finish(text)

    def show(self, texts: Sequence[str]) -> None:
        """Append observations to the context; those of shared turns stand there."""
        if not self._showing:
            self._session.show(texts)
            return
        seen = shown(texts, self._told[self._at - 1].results, form=self._setting.trust)
        self._session.log.messages.extend(Message(role="tool", content=text) for text in seen)

    async def _keep(self) -> Event:
        """Note the present state, and keep it where it can be restored from."""
        if self._branchable.snapshot is SnapshotKind.REPLAY:
            if self._guard.final_digest is None:
                raise EnvironmentFailure(
                    f"{self._guard.environment_id}: no state digest, so no branch could be checked"
                )
            return _note(self._guard.final_digest, None)
        began = time.perf_counter()
        state, digest = await self._guard.snapshot()
        self._session.environment_s += time.perf_counter() - began
        data, blob = canonical_state(state), digest_state(state)
        if not self._branchable.states.has(blob):
            kept = asyncio.to_thread(self._branchable.states.put, data)
            self._session.keeping.append(asyncio.ensure_future(kept))
        return _note(digest, blob)


def _note(digest: str, blob: str | None) -> Event:
    return Event(kind=STATE_KEPT, detail={"digest": digest, "blob": blob})


async def _put_back(
    branchable: Branchable,
    guard: GuardedEnvironment,
    toolbox: Toolbox,
    *,
    told: Sequence[Turn],
    turn: Turn,
    where: str,
) -> tuple[str, str]:
    """Bring environment and memory, freshly begun, to the state before ``turn``: how that was done, and its digest."""
    noted = turn.kept_state or (turn.state_before and (turn.state_before, None))
    if not noted:
        raise EnvironmentFailure(f"{where}: the state before it was not noted, so nothing could be checked")
    digest, blob = noted
    if blob is None:
        await _replay(toolbox, told, where=where)
        if guard.final_digest != digest:
            raise EnvironmentFailure(
                f"{where}: the same actions lead to state {guard.final_digest}, they led to {digest} before"
            )
        return "replay", digest
    toolbox.retrace(told)
    data = await asyncio.to_thread(branchable.states.get, blob)
    await guard.restore(data if branchable.snapshot is SnapshotKind.BYTES else read_state(data), digest=digest)
    return "snapshot", digest


async def _replay(toolbox: Toolbox, told: Sequence[Turn], *, where: str) -> None:
    for turn in told:
        async for result, answer, _ in toolbox.again(turn):
            before = (result.digest_before, result.text, result.error)
            if (answer.digest_before, answer.reply.text, answer.reply.error) != before:
                raise EnvironmentFailure(f"{where}: turn {turn.index} is answered differently when it is replayed")
