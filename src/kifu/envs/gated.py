"""Irreversible tools behind a gate: prepared, checked and confirmed, or only shadowed; each attempt is logged."""

import base64
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from kifu.envs.contract import Environment, digest_state
from kifu.envs.effects import IRREVERSIBLE
from kifu.envs.gate import Attempt, Attempts, Gate, Mode, Purpose, Status
from kifu.envs.spec import Reply, Snapshot, Task, ToolSpec
from kifu.envs.tools import check_call, command_text
from kifu.errors import UsageError, nearest
from kifu.records import Json, ToolCall

Found: TypeAlias = "Reply | str | Awaitable[Reply | str]"

CONFIRM, CANCEL = "confirm", "cancel"


class Gated(Environment):
    """Mixin that stands before an environment: ``class SafeShop(Gated, Shop)`` with ``gates`` and ``mode``.

    Calls of the tools named in ``gates`` are checked and carried out as ``mode`` says; every attempt, carried out or
    not, is a line of the log of effects. Everything else passes through.
    """

    gates: ClassVar[Mapping[str, Gate]] = {}
    """Every irreversible tool and its rules."""
    mode: ClassVar[Mode] = Mode.TWO_PHASE
    most_attempts: ClassVar[int] = 9
    """Attempts an episode may make; further ones are refused and not numbered."""

    attempts: Attempts = Attempts()
    """Of this episode."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.capabilities = replace(cls.capabilities, effects=True)

    def gate(self, tool: str) -> Gate:
        """Rules of a tool now; override it where they depend on the task."""
        return self.gates[tool]

    def purpose(self, call: ToolCall) -> Purpose:
        """Whose wish the call fulfils, for the log of effects alone."""
        return Purpose.UNKNOWN

    def settled(self, reply: Reply) -> Reply:
        """Every answer that the gate gives itself; override it where a turn costs something."""
        return reply

    def reset(self, task: Task, seed: int) -> Any:  # noqa: ANN401  # whatever the world's own reset returns
        """Reset the world; no attempt was made yet."""
        self.attempts = Attempts()
        opening = super().reset(task, seed)
        names = [spec.name for spec in super().tools()]
        for name in self.gates:
            if name not in names:
                raise UsageError(
                    f"{type(self).__name__}: gates name `{name}`, which is no tool; {nearest(name, names)}"
                )
        if self.mode is Mode.TWO_PHASE and {CONFIRM, CANCEL} & {*names}:
            raise UsageError(f"{type(self).__name__}: a tool is named {CONFIRM} or {CANCEL}, which are the gate's own")
        return opening

    def tools(self) -> tuple[ToolSpec, ...]:
        """The world's, irreversible ones saying that they only prepare, and those of the gate."""
        if self.mode is not Mode.TWO_PHASE:
            return super().tools()
        return (*(_prepares(spec) if spec.name in self.gates else spec for spec in super().tools()), *_own(self))

    def allowed(self) -> tuple[str, ...] | None:
        """The world's mask; `confirm` and `cancel` stand in it while something is prepared."""
        names = super().allowed()
        if self.mode is not Mode.TWO_PHASE:
            return names
        if names is None:
            if self.attempts.prepared:
                return None
            return tuple(spec.name for spec in super().tools())
        return (*names, CONFIRM, CANCEL) if self.attempts.prepared else names

    def step(self, call: ToolCall) -> Found:
        """Check a call; attempt it where it is irreversible."""
        check_call(self.tools(), call)
        if not _is_json(call.arguments):
            raise UsageError(f"tool `{call.name}`: an argument is no finite number; nothing was done")
        if self.mode is Mode.TWO_PHASE and call.name in (CONFIRM, CANCEL):
            return self._second(call)
        if call.name not in self.gates:
            return super().step(call)
        return self._first(call)

    def _first(self, call: ToolCall) -> Found:
        if len(self.attempts.items) >= self.most_attempts:
            _note(self, call, {"status": Status.REFUSED, "checks": {"attempts are left": False}})
            return self.settled(_refused(f"at most {self.most_attempts} attempts are made"))
        checks = self.gate(call.name).checks(call, self.attempts.of(call.name))
        status = {Mode.TWO_PHASE: Status.PREPARED, Mode.SHADOW: Status.SHADOWED, Mode.DIRECT: Status.EXECUTED}[
            self.mode
        ]
        status = status if all(checks.values()) else Status.REFUSED
        self.attempts = self.attempts.with_new(call, status)
        attempt = self.attempts.items[-1]
        if status is not Status.EXECUTED:
            _note(self, call, {"number": attempt.number, "status": status, "checks": checks})
        match status:
            case Status.REFUSED:
                return self.settled(_refused(*(name for name, holds in checks.items() if not holds)))
            case Status.SHADOWED:
                return self.settled(Reply(text=self.gate(call.name).shadow))
            case Status.PREPARED:
                return self.settled(Reply(text=_offer(self, attempt)))
        return self._carry_out(attempt, checks=checks)

    def _second(self, call: ToolCall) -> Found:
        number = call.arguments["number"]
        attempt = next((item for item in self.attempts.prepared if item.number == number), None)
        if attempt is None:
            _note(self, call, {"status": Status.REFUSED, "checks": {"it is prepared": False}})
            return self.settled(_refused(f"nothing is prepared under {number}"))
        if call.name == CANCEL:
            return self.settled(_close(self, attempt, Status.CANCELLED, reply=Reply(text=f"Cancelled {number}.")))
        checks = self.gate(attempt.tool).checks(attempt.call, self.attempts.of(attempt.tool))
        if not all(checks.values()):
            broken = [name for name, holds in checks.items() if not holds]
            return self.settled(_close(self, attempt, Status.REFUSED, reply=_refused(*broken), checks=checks))
        self.attempts = self.attempts.with_status(attempt.number, Status.EXECUTED)
        return self._carry_out(attempt, checks=checks)

    def _carry_out(self, attempt: Attempt, *, checks: Mapping[str, bool]) -> Found:
        """Hand the call to the world's own tool, between two lines of the log."""
        line = _Line(self, attempt, checks)
        try:
            found = super().step(attempt.call)
        except BaseException:
            line.end("failed")
            raise
        return _awaited(found, line) if isawaitable(found) else line.ended(found)

    def snapshot(self) -> Snapshot:
        """The world's snapshot and the attempts."""
        world = super().snapshot()
        kept: Json = {"bytes": base64.b64encode(world).decode()} if isinstance(world, bytes) else {"state": world}
        return {"world": kept, "attempts": self.attempts.to_json()}

    def restore(self, ref: Snapshot) -> None:
        """Take both back."""
        world = ref.get("world") if isinstance(ref, dict) else None
        if not isinstance(ref, dict) or not isinstance(world, dict) or not {"bytes", "state"} & {*world}:
            raise UsageError(f"{type(self).__name__}: found snapshot {ref!r:.100}, expected world and attempts")
        attempts = Attempts.from_json(ref.get("attempts"))
        super().restore(base64.b64decode(str(world["bytes"])) if "bytes" in world else world["state"])
        self.attempts = attempts

    def state_digest(self) -> str | None:
        """Of the world's digest and the attempts."""
        world = super().state_digest()
        return None if world is None else digest_state([world, self.attempts.to_json()])

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """The world's demonstration, every irreversible call confirmed where that is needed."""
        shown: list[ToolCall | str] = []
        number = 0
        for action in super().demonstrate(task, seed=seed, noise=noise):
            shown.append(action)
            if isinstance(action, ToolCall) and action.name in cls.gates:
                number += 1
                if cls.mode is Mode.TWO_PHASE:
                    shown.append(ToolCall(name=CONFIRM, arguments={"number": number}))
        return tuple(shown)


class _Line:
    """The two lines around an action that is carried out."""

    def __init__(self, world: Gated, attempt: Attempt, checks: Mapping[str, bool]) -> None:
        log = self._log = world.effect_log
        if log is not None:
            facts: dict[str, Json] = {
                "number": attempt.number,
                "status": str(Status.EXECUTED),
                "mode": str(world.mode),
                "confirmed": world.mode is Mode.TWO_PHASE,
                "purpose": str(world.purpose(attempt.call)),
                "checks": dict(checks),
            }
            self._pending = log.begin(IRREVERSIBLE, tool=attempt.tool, arguments=attempt.arguments, facts=facts)

    def end(self, reason: str) -> None:
        if self._log is not None:
            self._log.end(self._pending, reason=reason)

    def ended(self, found: Reply | str) -> Reply | str:
        self.end("error" if isinstance(found, Reply) and found.error else "done")
        return found


async def _awaited(found: Awaitable[Reply | str], line: _Line) -> Reply | str:
    try:
        return line.ended(await found)
    except BaseException:
        line.end("failed")
        raise


def _note(world: Gated, call: ToolCall, facts: Mapping[str, object]) -> None:
    """Write down an attempt that was not carried out."""
    log = world.effect_log
    if log is None:
        return
    purpose = world.purpose(call) if call.name in world.gates else Purpose.UNKNOWN
    whole = {"mode": str(world.mode), "purpose": str(purpose), **facts}
    kept: dict[str, Json] = {
        key: dict(value) if isinstance(value, Mapping) else str(value) if isinstance(value, Status) else value  # type: ignore[misc]
        for key, value in whole.items()
    }
    log.note(IRREVERSIBLE, tool=call.name, arguments=dict(call.arguments), facts=kept)


def _is_json(arguments: Mapping[str, Json]) -> bool:
    try:
        json.dumps(dict(arguments), allow_nan=False)
    except ValueError:
        return False
    return True


def _close(
    world: Gated, attempt: Attempt, status: Status, *, reply: Reply, checks: Mapping[str, bool] = MappingProxyType({})
) -> Reply:
    """Settle what was prepared without carrying it out."""
    world.attempts = world.attempts.with_status(attempt.number, status)
    _note(world, attempt.call, {"number": attempt.number, "status": status, "checks": checks})
    return reply


def _offer(world: Gated, attempt: Attempt) -> str:
    spec = next(spec for spec in world.tools() if spec.name == attempt.tool)
    return f"Prepared {attempt.number}: {command_text(spec, attempt.arguments)}. Nothing is done until you confirm."


def _refused(*broken: str) -> Reply:
    text = f"Refused, for this does not hold: {'; '.join(broken)}. Nothing was done."
    return Reply(text=text, error="; ".join(broken))


def _prepares(spec: ToolSpec) -> ToolSpec:
    return replace(spec, description=f"{spec.description} Only prepares it; {CONFIRM} carries it out.")


def _own(world: Gated) -> Sequence[ToolSpec]:
    number: Json = {"type": "integer", "enum": list(range(1, world.most_attempts + 1))}
    parameters: dict[str, Json] = {"type": "object", "properties": {"number": number}, "required": ["number"]}
    return (
        ToolSpec(
            name=CONFIRM,
            description="Carry out what was prepared under this number.",
            parameters=parameters,
            command="confirm {number}",
        ),
        ToolSpec(
            name=CANCEL,
            description="Drop what was prepared under this number.",
            parameters=parameters,
            command="cancel {number}",
        ),
    )
