"""From answered calls to tapes: every sampled token once, under the prefix it was sampled with.

Axes: ``T`` tokens of a context.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from types import MappingProxyType

import numpy as np

from kifu.errors import RecordError
from kifu.gateway.captured import Captured, Choice
from kifu.gateway.placing import without_stop
from kifu.gateway.said import Said
from kifu.records import Action, Event, Finish, Ints, Origin, Tape, TapeBuilder, ToolResult, Trust, Turn
from kifu.render import Message, Piece

FORK, CALL, WITHHELD = "context.fork", "capture.call", "capture.withheld"
UNANSWERED = "client/unanswered"
"""Named as the rewriter of a turn whose calls were not all answered: those were not executed, as far as is known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """A turn the policy wrote, where a conversation may go on."""

    turn: int
    tape: TapeBuilder
    start: int
    """Position of the turn's first token on its tape."""
    stop: int
    """Position after the turn on its tape."""
    said: tuple[Said, ...]
    """The conversation as the client knows it, the turn as its last message."""
    messages: tuple[Message, ...]
    """The same as rendered."""
    choice: Choice
    answered_at: float = 0.0

    @property
    def context(self) -> Ints:
        """``[T]`` everything up to the end of the turn."""
        return self.tape.ids[: self.stop]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """Where a conversation left the record."""

    parent: Node | None = None
    candidates: tuple[int, ...] = ()
    """Turns that it may continue and that cannot be told apart; empty when there is at most one."""
    matched: int = 0
    """Messages up to the parent's turn."""
    depth: int = 0
    """Messages that are those of some recorded conversation; the next one differs from all."""
    respelled: tuple[int, ...] = ()
    """Turns whose arguments came back equal as JSON and spelled differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """How many of the sampled tokens can be trained on, and why the others cannot."""

    sampled: int = 0
    trainable: int = 0
    withheld: Mapping[str, int] = field(default_factory=dict)
    """Reason to tokens."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "withheld", MappingProxyType(dict(self.withheld)))

    @property
    def fraction(self) -> float | None:
        """Share of the sampled tokens that is trainable; None when nothing was sampled."""
        return self.trainable / self.sampled if self.sampled else None

    def __add__(self, other: "Delivered") -> "Delivered":
        return Delivered(
            sampled=self.sampled + other.sampled,
            trainable=self.trainable + other.trainable,
            withheld=Counter(self.withheld) + Counter(other.withheld),
        )


class Capture:
    """The calls of one rollout as tapes and turns. Calls are applied in the order of the log."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[Node]] = {}
        """By the state of the conversation after the turn."""
        self._states: set[str] = set()
        self._spoken: dict[str, Node] = {}
        """First turn by the key of its message."""
        self._openings: list[tuple[TapeBuilder, bytes]] = []
        """Tapes that began a conversation, and their ids before the first turn."""
        self._bare: list[tuple[Node, str]] = []
        """Bare completions, each with the text of prompt and answer; empty where ids were given."""
        self._tape: TapeBuilder | None = None
        self._turns: dict[int, Turn] = {}
        self._marks: dict[int, list[Event]] = {}
        self._places: dict[int, Node] = {}
        self.reserialized: set[int] = set()
        """Turns whose arguments came back equal as JSON and spelled differently."""
        self.quarantined = 0
        """Calls whose parent could not be told."""
        self.forks = 0
        self.delivered = Delivered()

    def find(self, messages: Sequence[Said], tools_digest: str) -> Found:
        """The longest recorded conversation that ends in a turn of the policy and begins ``messages``."""
        states = list(_states(messages, tools_digest))
        depth = next((at for at, state in enumerate(states) if state not in self._states), len(states))
        for count in range(depth, 0, -1):
            nodes = [node for node in self._nodes.get(states[count - 1], ()) if _thinks_alike(node, messages)]
            told = [node for node in nodes if _is_named(node, messages)]
            if len(told) == 1:
                nodes = told
            if nodes:
                return Found(
                    parent=nodes[0],
                    candidates=tuple(node.turn for node in nodes) if len(nodes) > 1 else (),
                    matched=count,
                    depth=depth,
                    respelled=_respelled(nodes[0], messages, self._spoken),
                )
        return Found(depth=depth)

    def find_bare(self, prompt: str | Ints, stop_ids: Sequence[int]) -> tuple[Node, int, str] | None:
        """The longest bare completion that ``prompt`` goes on from.

        Returns:
            Its node, how many tokens of its context are shared (stop tokens only where the prompt repeats them), and
            the text that follows (empty for ids); None when there is none.
        """
        best: tuple[Node, int, str] | None = None
        for node, text in self._bare:
            context = node.context
            if isinstance(prompt, str):
                fits = bool(text) and prompt.startswith(text)
                shared = int(without_stop(context, stop_ids).size)
                rest = prompt[len(text) :]
            else:
                shared = int(context.size) if prompt[: context.size].tolist() == context.tolist() else 0
                plain = without_stop(context, stop_ids)
                if not shared and prompt[: plain.size].tolist() == plain.tolist():
                    shared = int(plain.size)
                fits, rest = shared > 0, ""
            if fits and shared < node.stop - len(node.choice.generation.token_ids):
                fits = False
            if fits and (best is None or shared > best[1]):
                best = (node, shared, rest)
        return best

    def place(self, turn: int) -> Node | None:
        """Where a turn stands; None when it failed or is not there."""
        return self._places.get(turn)

    @property
    def has_turns(self) -> bool:
        """Whether the policy wrote anything yet."""
        return bool(self._places)

    def spoken(self, said: Said) -> Node | None:
        """A turn of the policy with this message, wherever it was written."""
        return self._spoken.get(said.key()) if said.role == "assistant" else None

    def apply(self, call: Captured) -> None:
        """Write a call down.

        Raises:
            RecordError: the call does not fit what was applied before it.
        """
        if call.error is not None:
            failed = Event(kind="capture.error", detail={"error": call.error})
            self._turns[call.turn] = Turn(index=call.turn, events=(*call.events, failed))
            return
        parent = self._parent(call)
        base, forked_at = self._ground(call, parent)
        if digest_of(base.ids) != call.context:
            raise RecordError(f"turn {call.turn}: its context is not the one it was sampled in")
        if parent is not None and not call.ambiguous:
            self._take_results(parent, call)
        before = () if parent is None else parent.said
        said, messages = (*before, *call.said), (*(() if parent is None else parent.messages), *call.messages)
        end = base.position
        for at, choice in enumerate(call.choices):
            tape = base if base.position == end else base.fork(end)
            fork = forked_at if tape is base else end
            events = (*_fork_event(fork, by="choice" if tape is not base else "client"), *call.events)
            self._write(call, choice, turn=call.turn + at, tape=tape, events=events)
            node = Node(
                turn=call.turn + at,
                tape=tape,
                start=end,
                stop=tape.position,
                said=(*said, choice.said),
                messages=(*messages, choice.message),
                choice=choice,
                answered_at=call.answered_at,
            )
            self._places[node.turn] = node
            if call.prompt is None:
                self._register(node, call.tools_digest)
            else:
                self._bare.append((node, call.prompt + choice.said.content if call.prompt else ""))
        self.quarantined += bool(call.ambiguous)
        self.reserialized.update(call.respelled)

    def mark(self, turn: int, event: Event) -> None:
        """Add what happened to an answer besides being given; it may not be logged yet."""
        self._marks.setdefault(turn, []).append(event)

    def build(self, num_turns: int) -> tuple[tuple[Tape, ...], tuple[Turn, ...]]:
        """Every tape and turn; turns that were begun and never logged are empty and say so."""
        lost = Event(kind="capture.lost")
        written = (self._turns.get(at) or Turn(index=at, events=(lost,)) for at in range(num_turns))
        turns = tuple(replace(turn, events=(*turn.events, *self._marks.get(turn.index, ()))) for turn in written)
        tapes = (Tape(spans=()),) if self._tape is None else self._tape.build()
        return tapes, turns

    def _parent(self, call: Captured) -> Node | None:
        if call.parent is None:
            return None
        if call.parent not in self._places:
            raise RecordError(f"turn {call.turn} continues turn {call.parent}, which is not recorded")
        return self._places[call.parent]

    def _ground(self, call: Captured, parent: Node | None) -> tuple[TapeBuilder, int | None]:
        """The tape that holds exactly the call's context at its end, and where it left another one."""
        pieces = call.pieces
        if parent is not None:
            on = parent.tape.position == parent.stop == call.shared and not call.ambiguous
            tape, forked = (parent.tape, None) if on else (parent.tape.fork(call.shared), call.shared)
        else:
            ids = np.concatenate([piece.token_ids for piece in pieces])
            source, count = self._opening(ids)
            source = source or self._tape
            tape, forked = (TapeBuilder(), None) if source is None else (source.fork(count), count)
            pieces = dropped(pieces, count) if forked is not None else pieces
            self._openings.append((tape, _key(ids)))
        self._tape = tape
        self.forks += forked is not None
        for piece in pieces:
            tape.append(piece.origin, piece.token_ids, turn=call.turn)
        return tape, forked

    def _opening(self, ids: Ints) -> tuple[TapeBuilder | None, int]:
        """The tape whose beginning, before anything was sampled, is shared for longest; of equals the first."""
        best: TapeBuilder | None = None
        longest, wanted = 0, _key(ids)
        for tape, opening in self._openings:
            more = _WIDTH * (longest + 1)
            if more <= len(wanted) and opening.startswith(wanted[:more]):
                best, longest = tape, _shared(opening, wanted)
        return best, longest

    def _write(
        self, call: Captured, choice: Choice, *, turn: int, tape: TapeBuilder, events: tuple[Event, ...]
    ) -> None:
        made, start = choice.generation, tape.position
        count = int(made.sampled.sum())
        if choice.demonstrated:
            tape.append(Origin.DEMONSTRATION, made.token_ids, turn=turn)
        elif choice.withheld is None:
            tape.append_generation(
                made.token_ids,
                sampled=made.sampled,
                logprobs=made.logprobs,
                policy_version=made.policy_version,
                sampling=made.sampling,
                support=made.support,
                turn=turn,
            )
            self.delivered += Delivered(sampled=count, trainable=count)
        else:
            for token, is_sampled in zip(made.token_ids.tolist(), made.sampled.tolist(), strict=True):
                tape.append(Origin.EXTERNAL if is_sampled else Origin.CONTROLLER, [token], turn=turn)
            events = (*events, Event(kind=WITHHELD, detail={"reason": choice.withheld, "tokens": count}))
            self.delivered += Delivered(sampled=count, withheld={choice.withheld: count} if count else {})
        calls = choice.parsed.calls
        self._turns[turn] = Turn(
            index=turn,
            tape=tape.index,
            start=start,
            stop=tape.position,
            text=choice.parsed.text,
            finish=made.finish if made.token_ids.size else Finish.CONTEXT,
            action=Action(
                sampled=calls,
                rewriter=UNANSWERED if calls else None,
                parse_error=choice.parsed.error,
            ),
            seconds=max(call.answered_at - call.asked_at, 0.0),
            events=events,
        )

    def _register(self, node: Node, tools_digest: str) -> None:
        states = list(_states(node.said, tools_digest))
        self._states.update(states)
        self._nodes.setdefault(states[-1], []).append(node)
        self._spoken.setdefault(node.said[-1].key(), node)

    def _take_results(self, parent: Node, call: Captured) -> None:
        """Book what the client says its tools returned, as results of the turn that called them."""
        turn = self._turns[parent.turn]
        shown = list(takewhile(lambda said: said.role == "tool", call.said))
        if turn.results or not shown:
            return
        places = {item.id: at for at, item in enumerate(parent.choice.said.calls)}
        sampled = turn.action.sampled
        done = sorted({places[said.answers] for said in shown if said.answers in places})
        latency = max(call.asked_at - parent.answered_at, 0.0)
        results = [
            ToolResult(
                call=done.index(places[said.answers]) if said.answers in places else None,
                text=said.content,
                trust=Trust.TOOL,
                latency_s=latency,
            )
            for said in shown
        ]
        executed = tuple(sampled[at] for at in done)
        rewriter = None if executed == sampled else UNANSWERED
        action = replace(turn.action, executed=executed, rewriter=rewriter)
        self._turns[parent.turn] = replace(turn, action=action, results=tuple(results))


_WIDTH = 4
"""Bytes of one id."""


def _key(token_ids: Ints) -> bytes:
    """Ids as little-endian int32."""
    return token_ids.astype("<i4").tobytes()


def _shared(one: bytes, two: bytes) -> int:
    """Tokens that two keys have in common at their beginning."""
    size = min(len(one), len(two)) // _WIDTH
    differs = np.flatnonzero(np.frombuffer(one, "<i4", size) != np.frombuffer(two, "<i4", size))
    return int(differs[0]) if differs.size else size


def digest_of(token_ids: Ints) -> str:
    """SHA-256 of ids as little-endian int32."""
    return hashlib.sha256(_key(token_ids)).hexdigest()


def dropped(pieces: Sequence[Piece], count: int) -> tuple[Piece, ...]:
    """Pieces without their first ``count`` tokens."""
    found = []
    for piece in pieces:
        kept = piece.token_ids[count:]
        count = max(count - int(piece.token_ids.size), 0)
        if kept.size:
            found.append(replace(piece, token_ids=kept))
    return tuple(found)


def _states(messages: Sequence[Said], tools_digest: str) -> list[str]:
    state, found = f"tools {tools_digest}", []
    for said in messages:
        state = hashlib.sha256(f"{state} {said.key()}".encode()).hexdigest()
        found.append(state)
    return found


def _thinks_alike(node: Node, messages: Sequence[Said]) -> bool:
    """Whether thinking that the client sends back is what was thought."""
    pairs = zip(node.said, messages, strict=False)
    return all(told.reasoning is None or told.reasoning == own.reasoning for own, told in pairs)


def _respelled(node: Node, messages: Sequence[Said], spoken: Mapping[str, Node]) -> tuple[int, ...]:
    """Turns of a conversation whose arguments came back spelled differently."""
    pairs = zip(node.said, messages, strict=False)
    changed = [own for own, told in pairs if own.role == "assistant" and not own.is_spelled_as(told)]
    nodes = [spoken.get(own.key()) for own in changed]
    return tuple(found.turn for found in nodes if found is not None)


def _is_named(node: Node, messages: Sequence[Said]) -> bool:
    """Whether ids the client sends back name this turn and those before it."""
    for own, told in zip(node.said, messages, strict=False):
        if own.role == "assistant" and [call.id for call in own.calls] != [call.id for call in told.calls]:
            return False
        if own.role == "assistant" and told.id and own.id != told.id:
            return False
    return True


def _fork_event(at: int | None, *, by: str) -> tuple[Event, ...]:
    return () if at is None else (Event(kind=FORK, detail={"at": at, "by": by}),)
