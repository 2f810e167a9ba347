"""One answered call, complete enough to build tapes and to answer again, and its form in the log.

Axes: ``N`` tokens of a turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kifu.errors import RecordError
from kifu.gateway.said import Said
from kifu.policy import Generation
from kifu.records import Event, Finish, Origin, Sampling, Support, SupportKind, ToolCall, as_floats, as_ints
from kifu.render import Message, Parsed, Piece


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """One turn the policy wrote, and what the client was told of it."""

    generation: Generation
    parsed: Parsed
    """The whole turn as an action."""
    said: Said
    cut: bool = False
    """A stop string ended it; the client was told the text before the string."""
    withheld: str | None = None
    """Why its tokens are not trainable; None when they are."""
    demonstrated: bool = False
    """A demonstrator wrote it in place of the policy."""

    @property
    def message(self) -> Message:
        """The turn in a history: its content is everything that was written."""
        return Message(
            role="assistant",
            content=self.parsed.text,
            reasoning=self.parsed.reasoning,
            calls=self.parsed.calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """One call, answered or failed. The record is a function of the calls of a rollout in the order of the log."""

    turn: int
    """Index of its first choice among the turns of the rollout; one for each choice follows."""
    num_turns: int
    body: str
    """Digest of the body it was asked with."""
    retry_key: str = ""
    """What the client calls the attempt, where its library names one."""
    tools_digest: str = ""
    prompt: str | None = None
    """Text of a bare completion; None for conversations, empty when ids were given."""
    parent: int | None = None
    """Turn it continues."""
    ambiguous: tuple[int, ...] = ()
    """All turns it may continue, when they cannot be told apart."""
    shared: int = 0
    """Tokens shared with the parent's context."""
    pieces: tuple[Piece, ...] = ()
    """Tokens after those, as laid before the turn was written."""
    context: str = ""
    """Digest of all ids of the context."""
    said: tuple[Said, ...] = ()
    """Messages after the parent's turn, as the client sent them."""
    messages: tuple[Message, ...] = ()
    """The same as they were rendered."""
    choices: tuple[Choice, ...] = ()
    events: tuple[Event, ...] = ()
    respelled: tuple[int, ...] = ()
    """Turns whose arguments the client sent back spelled differently."""
    error: str | None = None
    """Why nothing was sampled."""
    asked_at: float = 0.0
    """Unix seconds."""
    answered_at: float = 0.0


def problem_of(generation: Generation, *, vocabulary: int) -> str | None:
    """Why a generation cannot be recorded as the policy's; None when it can."""
    ids, sampled, logprobs = generation.token_ids, generation.sampled, generation.logprobs
    if ids.size and int(ids.max()) >= vocabulary:
        return f"id {int(ids.max())} is outside the vocabulary of {vocabulary}"
    chosen = logprobs[sampled]
    if not bool(np.isfinite(chosen).all()) or bool((chosen > 0).any()):
        return "a sampled token has no finite logprob <= 0"
    for at, support in enumerate(generation.support or ()):
        if support is None or not sampled[at]:
            continue
        if support.contains(int(ids[at])) is False:
            return f"sampled id {int(ids[at])} lies outside its own support"
        if support.kind is SupportKind.IDS and support.ids.size == 1:
            return f"token {at} had one choice and claims to be sampled"
    return None


def captured_to_json(call: Captured) -> dict[str, Any]:
    """As it stands in the log."""
    return {
        "turn": call.turn,
        "num_turns": call.num_turns,
        "body": call.body,
        "retry_key": call.retry_key,
        "tools_digest": call.tools_digest,
        "prompt": call.prompt,
        "parent": call.parent,
        "ambiguous": list(call.ambiguous),
        "shared": call.shared,
        "respelled": list(call.respelled),
        "pieces": [[piece.origin.value, piece.token_ids.tolist()] for piece in call.pieces],
        "context": call.context,
        "said": [said.to_json() for said in call.said],
        "messages": [_message_to_json(message) for message in call.messages],
        "choices": [_choice_to_json(choice) for choice in call.choices],
        "events": [[event.kind, dict(event.detail)] for event in call.events],
        "error": call.error,
        "asked_at": call.asked_at,
        "answered_at": call.answered_at,
    }


def captured_from_json(value: Mapping[str, Any]) -> Captured:
    """Read what `captured_to_json` wrote.

    Raises:
        RecordError: it was not written by it.
    """
    try:
        return Captured(
            **{
                **value,
                "ambiguous": tuple(value["ambiguous"]),
                "respelled": tuple(value["respelled"]),
                "pieces": tuple(Piece(origin=Origin(kind), token_ids=as_ints(ids)) for kind, ids in value["pieces"]),
                "said": tuple(map(Said.from_json, value["said"])),
                "messages": tuple(map(_message_from_json, value["messages"])),
                "choices": tuple(map(_choice_from_json, value["choices"])),
                "events": tuple(Event(kind=kind, detail=detail) for kind, detail in value["events"]),
            }
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise RecordError(f"a logged call of turn {value.get('turn')} cannot be read: {cause}") from cause


def _calls_to_json(calls: Sequence[ToolCall]) -> list[Any]:
    return [[call.name, dict(call.arguments), call.id] for call in calls]


def _calls_from_json(value: Sequence[Any]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(name=name, arguments=arguments, id=ident) for name, arguments, ident in value)


def _message_to_json(message: Message) -> list[Any]:
    return [message.role, message.content, message.reasoning, _calls_to_json(message.calls)]


def _message_from_json(value: Sequence[Any]) -> Message:
    role, content, reasoning, calls = value
    return Message(role=role, content=content, reasoning=reasoning, calls=_calls_from_json(calls))


def _choice_to_json(choice: Choice) -> dict[str, Any]:
    parsed = choice.parsed
    return {
        "generation": _generation_to_json(choice.generation),
        "parsed": [parsed.text, _calls_to_json(parsed.calls), parsed.error, parsed.reasoning],
        "said": choice.said.to_json(),
        "cut": choice.cut,
        "withheld": choice.withheld,
        "demonstrated": choice.demonstrated,
    }


def _choice_from_json(value: Mapping[str, Any]) -> Choice:
    text, calls, error, reasoning = value["parsed"]
    return Choice(
        generation=_generation_from_json(value["generation"]),
        parsed=Parsed(text=text, calls=_calls_from_json(calls), error=error, reasoning=reasoning),
        said=Said.from_json(value["said"]),
        cut=value["cut"],
        withheld=value["withheld"],
        demonstrated=value.get("demonstrated", False),
    )


def _generation_to_json(generation: Generation) -> dict[str, Any]:
    finite = np.isfinite(generation.logprobs).tolist()
    return {
        "token_ids": generation.token_ids.tolist(),
        "sampled": generation.sampled.tolist(),
        "logprobs": [value if ok else None for value, ok in zip(generation.logprobs.tolist(), finite, strict=True)],
        "policy_version": generation.policy_version,
        "finish": generation.finish.value,
        "sampling": asdict(generation.sampling),
        "support": None if generation.support is None else [_support_to_json(item) for item in generation.support],
        **({} if generation.alternatives is None else {"alternatives": generation.alternatives}),
    }


def _generation_from_json(value: Mapping[str, Any]) -> Generation:
    sampling = dict(value["sampling"])
    for name in ("stop_ids", "stop_strings", "untrainable"):
        sampling[name] = tuple(sampling[name])
    support, told = value["support"], value.get("alternatives")
    return Generation(
        token_ids=as_ints(value["token_ids"]),
        sampled=np.array(value["sampled"], dtype=np.bool_),
        logprobs=as_floats([float("nan") if item is None else item for item in value["logprobs"]]),
        policy_version=value["policy_version"],
        finish=Finish(value["finish"]),
        sampling=Sampling(**sampling),
        support=None if support is None else tuple(_support_from_json(item) for item in support),
        alternatives=None if told is None else tuple(tuple((token, nats) for token, nats in item) for item in told),
    )


def _support_to_json(support: Support | None) -> list[Any] | None:
    return None if support is None else [support.kind.value, support.ids.tolist(), support.mask]


def _support_from_json(value: Sequence[Any] | None) -> Support | None:
    if value is None:
        return None
    kind, ids, mask = value
    return Support(kind=SupportKind(kind), ids=as_ints(ids), mask=mask)
