"""Key and door: a clue seen once must be remembered until the door.

The door's colour is hidden. Only the observation right after the first `inspect` names it, no observation names the
carried key, one hand holds one key, and the wrong key or the wrong door ends the task. So the present observation never
tells which door to open, while the whole history does.
"""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from kifu.envs.contract import Environment
from kifu.envs.finite import Best, FiniteModel, best_deterministic, explore, full, memoryless, visits
from kifu.envs.spec import Capabilities, Component, Reply, Snapshot, Task, ToolSpec
from kifu.envs.tools import check_call
from kifu.errors import UsageError
from kifu.records import Json, StopReason, ToolCall, Verdict

COLOURS = ("red", "blue")
TOOLS = tuple(
    ToolSpec(name=name, description=description, parameters={"type": "object", "properties": {}, "required": []})
    for name, description in (
        ("inspect", "Look around the room."),
        ("pickup_red", "Take the red key."),
        ("pickup_blue", "Take the blue key."),
        ("open_red", "Open the door as the red one."),
        ("open_blue", "Open the door as the blue one."),
        ("finish", "Declare the task done."),
    )
)
BUDGET = 8
"""Steps the task allows; the shortest success takes 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything hidden, and whether the episode is over."""

    door: str
    budget: int = BUDGET
    inspected: bool = False
    key: str | None = None
    opened: bool = False
    invalid: int = 0
    stop: str | None = None


def transition(state: State, action: str) -> tuple[State, Reply]:
    """The world's rule: the next state and what the policy is shown.

    Raises:
        UsageError: the episode is over.
    """
    verb, _, colour = action.partition("_")
    match verb:
        case "inspect":
            first = not state.inspected
            text = f"clue_{state.door}" if first else "nothing"
            rewards = {"looked": 1.0, **({"clue": 1.0} if first else {})}
            after, stop = _spend(replace(state, inspected=True))
        case "pickup":
            text, rewards = "holding", {"right_key": 1.0} if colour == state.door else {}
            after, stop = _spend(replace(state, key=colour))
        case "open" if state.opened or colour == state.key == state.door:
            text, rewards = "opened", {} if state.opened else {"door_open": 1.0}
            after, stop = _spend(replace(state, opened=True))
        case "open":
            text, rewards = "jammed", {}
            after, stop = _spend(state, StopReason.FAILURE)
        case _:
            text, rewards = "ended", {}
            after, stop = _spend(state, StopReason.SUCCESS if state.opened else StopReason.FAILURE)
    return after, Reply(text=text, stop=stop, rewards=rewards)


def _spend(state: State, stop: StopReason | None = None) -> tuple[State, StopReason | None]:
    """Take one step from the budget; the last one ends the task."""
    if state.stop is not None:
        raise UsageError(f"the episode ended with {state.stop}; reset before the next step")
    if stop is None and state.budget == 1:
        stop = StopReason.TASK_BUDGET
    return replace(state, budget=state.budget - 1, stop=stop), stop


def _progress(scores: str) -> Component:
    """A step towards the open door, paid the first time; a large weight can still outbid finishing."""
    return Component(
        scores=scores,
        labeller="the environment's rule, on the world's state",
        is_checkable=True,
        needs_continuation=False,
        is_repeatable=False,
        changes_optimum=True,
    )


class KeyDoor(Environment):
    """Inspect, pick up the key of the door's colour, open the door of that colour, finish."""

    id: ClassVar[str] = "key_door"
    capabilities: ClassVar[Capabilities] = Capabilities()
    instructions: ClassVar[str] = (
        "A closed door is red or blue; inspecting the room shows which, once. "
        "Take the key of that colour, open the door, finish."
    )
    vocabulary: ClassVar[tuple[str, ...]] = (
        "start",
        "clue_red",
        "clue_blue",
        "nothing",
        "holding",
        "opened",
        "jammed",
        "ended",
        "invalid",
    )
    facts: ClassVar[Mapping[str, str]] = {
        "initial states": "door red or blue, room not inspected, no key held, door closed, full task budget",
        "observations": "start, clue_<colour> right after the first inspect, nothing after later ones, holding, "
        "opened, jammed, ended, invalid",
        "hidden": "door colour, whether the room was inspected, colour of the carried key, door open, budget left",
        "actions": "inspect, pickup_red, pickup_blue, open_red, open_blue, finish; the phase mask offers pickup_* with "
        "an empty hand and open_* with a held key, whatever the colours",
        "reset, versions, seeds": "the task's seed fixes the colour; the world has no other randomness",
        "success": "finish after the door is open",
        "failure": "finish before it is open, or opening with the wrong key or on the wrong colour",
        "end": f"success, failure, or {BUDGET} steps without finishing (task budget, a terminal failure)",
        "reward": "verdict at the end: 1 for success, else 0; components clue, right_key, door_open once each, and "
        "looked for every inspect; a failure by the policy's own act pays the option early_end, at most 0, where given",
        "irreversible": "picking up a key, opening, finishing",
    }
    components: ClassVar[Mapping[str, Component]] = {
        "clue": _progress("the first inspect"),
        "right_key": _progress("taking the key of the door's colour"),
        "door_open": _progress("opening the door"),
        "looked": Component(
            scores="every inspect, useful or not: a step that looks like work",
            labeller="the environment's rule, on the executed call",
            is_checkable=True,
            needs_continuation=False,
            is_repeatable=True,
            changes_optimum=True,
        ),
    }

    def __init__(self, early_end: float | None = None) -> None:
        """Make a closed room.

        Args:
            early_end: reward of an episode that the policy ended without success before its budget was used: it gave up
                by `finish` or made success impossible at the door. None: 0, as for a used budget.
        """
        if early_end is not None and not -math.inf < early_end <= 0:
            raise UsageError(
                f"key_door: found early_end {early_end!r}, expected a finite number, at most 0: giving up must not pay"
            )
        self._early_end = early_end
        self.state = State(door=COLOURS[0])

    def reset(self, task: Task, seed: int) -> str:
        """Close the door and empty the hand."""
        door = str(task.data.get("door", ""))
        budget = task.data.get("budget", BUDGET)
        if door not in COLOURS:
            raise UsageError(f"key_door task `{task.id}`: found door {door!r}, expected red or blue in task.data")
        if not isinstance(budget, int) or budget < 1:
            raise UsageError(f"key_door task `{task.id}`: found budget {budget!r}, expected a whole number >= 1")
        self.state = State(door=door, budget=budget)
        return "start"

    def tools(self) -> tuple[ToolSpec, ...]:
        """Six calls without arguments."""
        return TOOLS

    def step(self, call: ToolCall) -> Reply:
        """Execute one call the phase allows."""
        check_call(TOOLS, call)
        if call.name not in self.allowed():
            raise UsageError(f"`{call.name}` is not possible now; possible: {', '.join(self.allowed())}")
        self.state, reply = transition(self.state, call.name)
        return reply

    def invalid(self, error: str) -> Reply:
        """A turn without a valid call costs one step."""
        self.state, stop = _spend(replace(self.state, invalid=self.state.invalid + 1))
        return Reply(text="invalid", stop=stop, error=error)

    def verify(self) -> Verdict:
        """Success is an open door and a finish after it."""
        state = self.state
        return Verdict(
            success=state.opened and state.stop == StopReason.SUCCESS,
            score=self._early_end if state.stop == StopReason.FAILURE else None,
            world_state_checks={"door_open": state.opened, "finished": state.stop == StopReason.SUCCESS},
            invalid_actions=state.invalid,
            verifier="key_door/1",
        )

    def snapshot(self) -> Json:
        """The hidden state."""
        return asdict(self.state)

    def restore(self, ref: Snapshot) -> None:
        """Take back a hidden state."""
        if not isinstance(ref, dict) or set(ref) != set(asdict(self.state)):
            raise UsageError(f"key_door: found snapshot {ref!r}, expected the fields {', '.join(asdict(self.state))}")
        self.state = State(**ref)  # type: ignore[arg-type]  # the fields are those of asdict

    def allowed(self) -> tuple[str, ...]:
        """The phase: with a held key open_*, with an empty hand pickup_*; it depends on no colour."""
        if self.state.key is None:
            return ("inspect", "pickup_red", "pickup_blue", "finish")
        return ("inspect", "open_red", "open_blue", "finish")

    def potential(self) -> float:
        """A quarter for each of: clue seen, right key held, door open; 0 in every terminal state."""
        state = self.state
        if state.stop is not None:
            return 0.0
        return (state.inspected + (state.key == state.door) + state.opened) / 4

    def state_key(self) -> str:
        """The hidden state without the budget."""
        state = self.state
        return f"{state.door}/{state.inspected:d}/{state.key}/{state.opened:d}/{state.stop}"

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """Red and blue doors; each consecutive pair of seeds holds one of either, in random order."""
        at = seed
        while True:
            swap = random.Random(at // 2).random() < 0.5
            door = COLOURS[(at + swap) % 2]
            yield Task(id=f"key_door/{at}", seed=at, family=door, split=split, data={"door": door})
            at += 1

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """Inspect, take, open, finish; with noise, a step is any allowed call instead."""
        rng = random.Random(f"key_door/{task.id}/{seed}")
        world = cls()
        world.reset(task, seed)
        calls: list[ToolCall | str] = []
        while world.state.stop is None:
            state = world.state
            name = "finish" if state.opened else "inspect"
            if state.inspected and not state.opened:
                name = f"pickup_{state.door}" if state.key is None else f"open_{state.key}"
            if rng.random() < noise:
                name = rng.choice(world.allowed())
            calls.append(ToolCall(name=name))
            world.step(ToolCall(name=name))
        return tuple(calls)


def model(budget: int = BUDGET) -> FiniteModel:
    """Every state reachable from a red and a blue task, equally likely."""
    tasks = [Task(id=door, family=door, data={"door": door, "budget": budget}) for door in COLOURS]
    return explore(KeyDoor(), tasks)


def optimum(budget: int = BUDGET) -> float:
    """Largest success probability of any policy with perfect recall."""
    return best_deterministic(model(budget), full, horizon=budget).value


def memoryless_optimum(budget: int = BUDGET) -> Best:
    """The best policy that sees only the present observation and mask, stochastic ones included.

    Stochastic memoryless policies may beat deterministic ones where an observation recurs within an episode: success
    is then not linear in the probabilities of that observation. Let a policy also see how often the present observation
    was seen before: no information state recurs, success is linear in each one's probabilities, so a deterministic
    policy is best, and memoryless policies are a subset. Equal optima of both searches therefore prove that no
    stochastic memoryless policy does better.

    Raises:
        UsageError: the two searches differ, so the enumeration does not decide.
    """
    world = model(budget)
    found = best_deterministic(world, memoryless, horizon=budget)
    bound = best_deterministic(world, visits, horizon=budget).value
    if bound > found.value:
        raise UsageError(
            f"key_door with budget {budget}: deterministic optimum {found.value}, stochastic bound {bound}"
        )
    return found
