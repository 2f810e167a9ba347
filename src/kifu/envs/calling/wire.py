"""Values of the environment contract as JSON and back, for environments in another process."""

import base64
from collections.abc import Mapping
from typing import Any

from kifu.envs.spec import Observation, Reply, Snapshot, Task, ToolSpec
from kifu.envs.view import View
from kifu.records import StopReason, ToolCall, Trust, Verdict

Message = dict[str, Any]


def task_out(task: Task) -> Message:
    """A task as JSON."""
    return {
        "id": task.id,
        "seed": task.seed,
        "family": task.family,
        "split": task.split,
        "data": dict(task.data),
    }


def call_out(call: ToolCall) -> Message:
    """A call as JSON."""
    return {"name": call.name, "arguments": dict(call.arguments), "id": call.id}


def snapshot_out(ref: Snapshot) -> Message:
    """A snapshot as JSON; bytes in base64."""
    return {"bytes": base64.b64encode(ref).decode()} if isinstance(ref, bytes) else {"state": ref}


def snapshot_in(message: Message) -> Snapshot:
    """A snapshot from JSON."""
    if "bytes" in message:
        return base64.b64decode(message["bytes"])
    state: Snapshot = message["state"]
    return state


def shown_out(found: object) -> Message:
    """What reset, a tool or ``invalid`` returned; anything unknown by its type's name."""
    match found:
        case str():
            return {"text": found}
        case bytes():
            return {"bytes": base64.b64encode(found).decode()}
        case Observation():
            return {"observation": {"text": found.text, "trust": found.trust}}
        case Reply():
            return {
                "reply": {
                    "text": found.text,
                    "stop": found.stop,
                    "rewards": dict(found.rewards),
                    "duration": found.duration,
                    "exit_status": found.exit_status,
                    "error": found.error,
                    "trust": found.trust,
                }
            }
    return {"nonsense": type(found).__name__}


def shown_in(message: Message) -> object:
    """What was shown, from JSON. Something the contract does not know comes back as a `Nonsense` of that name."""
    if "text" in message:
        return str(message["text"])
    if "bytes" in message:
        return base64.b64decode(message["bytes"])
    if "observation" in message:
        found = message["observation"]
        return Observation(text=found["text"], trust=Trust(found["trust"]))
    if "reply" in message:
        found = message["reply"]
        stop = None if found["stop"] is None else StopReason(found["stop"])
        return Reply(**{**found, "stop": stop, "trust": Trust(found["trust"])})
    return type(str(message.get("nonsense", "nothing")), (), {})()


def verdict_out(found: object) -> Message:
    """A verdict as JSON; anything else by its type's name."""
    if not isinstance(found, Verdict):
        return {"nonsense": type(found).__name__}
    fields = {name: getattr(found, name) for name in Verdict.__slots__}
    return {"verdict": {name: dict(item) if isinstance(item, Mapping) else item for name, item in fields.items()}}


def verdict_in(message: Message) -> object:
    """A verdict from JSON."""
    return Verdict(**message["verdict"]) if "verdict" in message else shown_in(message)


def view_out(view: View) -> Message:
    """A view as JSON."""
    return {
        "tools": [
            {
                "name": spec.name,
                "description": spec.description,
                "parameters": dict(spec.parameters),
                "command": spec.command,
            }
            for spec in view.tools
        ],
        "allowed": view.allowed,
        "potential": view.potential,
        "state_key": view.state_key,
        "digest": view.digest,
    }


def view_in(message: Message) -> View:
    """A view from JSON."""
    allowed = message["allowed"]
    return View(
        tools=tuple(ToolSpec(**spec) for spec in message["tools"]),
        allowed=None if allowed is None else tuple(allowed),
        potential=message["potential"],
        state_key=message["state_key"],
        digest=message["digest"],
    )
