"""Who called whom: ids the gateway gave out name their turn, and sub-agents name the turn that called them."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kifu.gateway.refusal import Refusal
from kifu.records import Event, Json, Trajectory

AGENT = "capture.agent"
"""Event of a turn whose client said which agent asked for it."""
AGENT_HEADER, PARENT_HEADER = "x-kifu-agent", "x-kifu-parent"
MAX_AGENT_CHARS = 128

_DIGITS = 20
_NAMED = re.compile(r"(?:chatcmpl-|cmpl-|resp_|msg_|rs_|(?:fc_)?call_)([0-9a-f]{20})(?:[0-9a-f]{4})?(?:_\d+)?")


def name_of(rollout: str, turn: int, *, digits: int = _DIGITS) -> str:
    """What ids of a turn, of its message and of its calls are made from; unique in the run."""
    return hashlib.sha256(f"{rollout}/{turn}".encode()).hexdigest()[:digits]


class Names:
    """Turns of one rollout by the ids that clients know them under.

    Args:
        rollout: id of the rollout.
    """

    def __init__(self, rollout: str) -> None:
        self._rollout = rollout
        self._turns: dict[str, int] = {}

    def turn(self, text: str, *, num_turns: int) -> int | None:
        """The turn that an id of an answer, of a message or of a call belongs to; None when it is none of these."""
        for at in range(len(self._turns), num_turns):
            self._turns[name_of(self._rollout, at)] = at
        found = _NAMED.fullmatch(text)
        return None if found is None else self._turns.get(found[1])


def lineage_of(headers: Mapping[str, str], names: Names, *, num_turns: int) -> tuple[Event, ...]:
    """What a call's headers say about the agent that makes it; nothing without them.

    Args:
        headers: of the call, by lower-case names.
        names: of the rollout.
        num_turns: turns the rollout has.

    Raises:
        Refusal: a header that names no turn of the rollout, or no agent.
    """
    agent, parent = headers.get(AGENT_HEADER), headers.get(PARENT_HEADER)
    if agent is None and parent is None:
        return ()
    if agent is not None and not (0 < len(agent) <= MAX_AGENT_CHARS and agent.isprintable()):
        raise Refusal(
            f"{AGENT_HEADER}: expected 1 to {MAX_AGENT_CHARS} printable characters",
            field=AGENT_HEADER,
            code="invalid_value",
        )
    detail: dict[str, Json] = {} if agent is None else {"agent": agent}
    if parent is not None:
        turn = int(parent) if re.fullmatch(r"\d{1,9}", parent) else names.turn(parent, num_turns=num_turns)
        if turn is None or turn >= num_turns:
            raise Refusal(
                f"{PARENT_HEADER}: found {parent[:80]!r}, expected the number of a turn of this rollout (`x-kifu-turn` "
                "of its answer) or an id of its answer, its message or one of its calls",
                field=PARENT_HEADER,
                code="invalid_value",
            )
        detail["parent"] = turn
    return (Event(kind=AGENT, detail=detail),)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLink:
    """Which agent a turn belongs to, and which turn called that agent."""

    turn: int
    agent: str = ""
    """Empty when the client did not say."""
    parent: int | None = None
    """The turn that called the agent; None for the outermost one."""


def agent_links(record: Trajectory) -> tuple[AgentLink, ...]:
    """The tree of agents of a captured rollout, turn by turn, as far as its clients told it."""
    found = []
    for turn in record.turns:
        for event in turn.events:
            if event.kind == AGENT:
                parent = event.detail.get("parent")
                agent = str(event.detail.get("agent", ""))
                found.append(
                    AgentLink(turn=turn.index, agent=agent, parent=parent if isinstance(parent, int) else None)
                )
    return tuple(found)
