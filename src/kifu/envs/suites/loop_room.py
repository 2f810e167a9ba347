"""Eight rooms in a ring, walked for ever: carry parcels from room 0 to room 4. A continuing, discounted task."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from kifu.envs.contract import Environment
from kifu.envs.spec import Capabilities, Component, Reply, Snapshot, Task, ToolSpec
from kifu.envs.tools import check_call
from kifu.errors import ArgumentError, UsageError
from kifu.policy import uniform
from kifu.records import ToolCall, Verdict

Floats: TypeAlias = npt.NDArray[np.float64]
ROOMS, DEPOT, TARGET = 8, 0, 4
SLIP = 0.1
"""Probability that a step does not move."""
ACTIONS = ("forward", "back", "ring")
TOOLS = tuple(
    ToolSpec(name=name, description=description, parameters={"type": "object", "properties": {}, "required": []})
    for name, description in (
        ("forward", "Go to the next room."),
        ("back", "Go to the room before."),
        ("ring", "Ring the bell and stay."),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where the robot is, and where the random stream stands."""

    room: int
    loaded: bool
    stream: str
    step: int = 0


class LoopRoom(Environment):
    """A parcel is taken in room 0 and delivered in room 4, again and again; a step slips with probability 0.1.

    An episode is a segment. The collector's cut is a truncation: the value of what follows is bootstrapped, and the
    next segment starts from the carried state (see `kifu.envs.segments`).
    """

    id: ClassVar[str] = "loop_room"
    capabilities: ClassVar[Capabilities] = Capabilities(continuing=True)
    instructions: ClassVar[str] = "You carry parcels from room 0 to room 4. Commands: forward, back, ring."
    vocabulary: ClassVar[tuple[str, ...]] = tuple(
        f"room{room}_{load}" for room in range(ROOMS) for load in ("empty", "loaded")
    )
    facts: ClassVar[Mapping[str, str]] = {
        "initial states": "any room, without a parcel, drawn from the seed; or the state carried from the last segment",
        "observations": "room and load; nothing is hidden",
        "actions": "forward, back, ring",
        "reset, versions, seeds": "the seed names a counter-based random stream; its position is part of the state",
        "success": "none: the task is continuing",
        "failure": "none",
        "end": "never; only the collector cuts",
        "reward": "component delivered: 1 on arriving loaded in room 4; component rang: 1 for every bell, a bonus that "
        "looks useful and is not; the verdict pays 0",
        "irreversible": "nothing",
    }
    components: ClassVar[Mapping[str, Component]] = {
        "delivered": Component(
            scores="arriving loaded in room 4: the task itself, once a parcel",
            labeller="the environment's rule, on the world's state",
            is_checkable=True,
            needs_continuation=False,
            is_repeatable=False,
            changes_optimum=True,
        ),
        "rang": Component(
            scores="every ring of the bell, which moves nothing",
            labeller="the environment's rule, on the executed call",
            is_checkable=True,
            needs_continuation=False,
            is_repeatable=True,
            changes_optimum=True,
        ),
    }

    def __init__(self) -> None:
        self.state = State(room=DEPOT, loaded=False, stream="")

    def reset(self, task: Task, seed: int) -> str:
        """Start a first segment, or go on from the carried state."""
        carried = task.data.get("carried")
        if carried is not None:
            self.restore(carried)
            return self.state_key()
        stream = f"loop_room/{task.seed}/{seed}"
        room = int(uniform(f"{stream}/start", turn=0, position=0) * ROOMS)
        self.state = State(room=room, loaded=room == DEPOT, stream=stream)
        return self.state_key()

    def tools(self) -> tuple[ToolSpec, ...]:
        """Three calls without arguments."""
        return TOOLS

    def step(self, call: ToolCall) -> Reply:
        """Walk or ring."""
        check_call(TOOLS, call)
        state = self.state
        slips = uniform(state.stream, turn=state.step, position=0) < SLIP
        room, loaded, delivered = arrive(state.room, state.loaded, "ring" if slips else call.name)
        self.state = replace(state, room=room, loaded=loaded, step=state.step + 1)
        rewards = {"delivered": 1.0} if delivered else {"rang": 1.0} if call.name == "ring" else {}
        return Reply(text=self.state_key(), rewards=rewards)

    def invalid(self, error: str) -> Reply:
        """Nothing moves."""
        return Reply(text=self.state_key(), error=error)

    def verify(self) -> Verdict:
        """There is nothing to judge: every reward is a step component, and a cut pays exactly 0."""
        return Verdict(success=None, score=0.0, verifier="loop_room/1")

    def snapshot(self) -> Snapshot:
        """Room, load, and the position of the random stream."""
        return asdict(self.state)

    def restore(self, ref: Snapshot) -> None:
        """Take back a state."""
        if not isinstance(ref, dict) or set(ref) != set(asdict(self.state)):
            raise UsageError(f"loop_room: found snapshot {ref!r}, expected {', '.join(asdict(self.state))}")
        self.state = State(**ref)  # type: ignore[arg-type]  # the fields are those of asdict

    def potential(self) -> float:
        """Share of the round already walked: from room 4 back to 0, then loaded to 4."""
        return _progress(self.state.room, self.state.loaded) / ROOMS

    def state_key(self) -> str:
        """Room and load."""
        return f"room{self.state.room}_{'loaded' if self.state.loaded else 'empty'}"

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """First segments."""
        at = seed
        while True:
            yield Task(id=f"loop_room/{at}", seed=at, family="loop_room", split=split, data={"segment": 0})
            at += 1

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """Twenty steps of walking forward; with noise, a step is any action instead."""
        noisy = [uniform(f"{task.id}/{seed}/noise", turn=turn, position=0) < noise for turn in range(20)]
        picks = [int(uniform(f"{task.id}/{seed}/pick", turn=turn, position=0) * len(ACTIONS)) for turn in range(20)]
        return tuple(
            ToolCall(name=ACTIONS[pick] if stray else "forward") for stray, pick in zip(noisy, picks, strict=True)
        )


def arrive(room: int, loaded: bool, action: str) -> tuple[int, bool, bool]:
    """Room, load and whether a parcel was delivered, after an action that does not slip."""
    room = (room + {"forward": 1, "back": -1, "ring": 0}[action]) % ROOMS
    delivered = loaded and room == TARGET and action != "ring"
    return room, (loaded and not delivered) or room == DEPOT, delivered


def _progress(room: int, loaded: bool) -> int:
    return (ROOMS - TARGET) + min(room, ROOMS - room) if loaded else TARGET - min(room, ROOMS - room)


def transition_tables() -> tuple[Floats, Floats, Floats]:
    """The world as arrays over ``A`` actions and ``S`` states (order of `LoopRoom.vocabulary`).

    Returns:
        ``[A, S, S]`` transition probabilities, and ``[A, S]`` expected components ``delivered`` and
        ``rang``.
    """
    num_states = 2 * ROOMS
    P_ASS = np.zeros((len(ACTIONS), num_states, num_states))
    delivered_AS = np.zeros((len(ACTIONS), num_states))
    rang_AS = np.zeros((len(ACTIONS), num_states))
    for at, action in enumerate(ACTIONS):
        for state in range(num_states):
            for moved, chance in ((action, 1.0 - SLIP), ("ring", SLIP)):
                room, loaded, pays = arrive(state // 2, bool(state % 2), moved)
                P_ASS[at, state, 2 * room + loaded] += chance
                delivered_AS[at, state] += chance * pays
            rang_AS[at, state] = float(action == "ring")
    return P_ASS, delivered_AS, rang_AS


def discounted_value(policy_SA: Floats, reward_AS: Floats, *, gamma: float) -> Floats:
    """``[S]`` exact value of a policy: ``V = (I - gamma P_pi)^-1 r_pi``.

    Args:
        policy_SA: probabilities of the actions in each state.
        reward_AS: expected reward of an action in a state.
        gamma: discount, 0 <= gamma < 1.
    """
    if not 0.0 <= gamma < 1.0:
        raise ArgumentError(f"gamma: found {gamma}, expected 0 <= gamma < 1; an endless sum needs a discount")
    P_ASS = transition_tables()[0]
    P_SS = np.einsum("sa,ast->st", policy_SA, P_ASS)
    value_S: Floats = np.linalg.solve(np.eye(len(P_SS)) - gamma * P_SS, np.einsum("sa,as->s", policy_SA, reward_AS))
    return value_S
