"""What an environment says about its present state, read in one go right after every call."""

from dataclasses import dataclass

from kifu.envs.contract import Environment
from kifu.envs.spec import ToolSpec
from kifu.records.plain import as_real, as_text


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Tools, mask, potential, key and digest of one state."""

    tools: tuple[ToolSpec, ...] = ()
    allowed: tuple[str, ...] | None = None
    potential: float | None = None
    state_key: str | None = None
    digest: str | None = None


def look(world: Environment) -> View:
    """Read and check the view of an environment.

    Raises:
        TypeError: ``tools`` holds something that is not a `ToolSpec`.
        ValueError: ``allowed`` names no tool.
        RecordError: the potential is no finite number, or key or digest are not text.
    """
    tools, allowed, potential = tuple(world.tools()), world.allowed(), world.potential()
    state_key, digest = world.state_key(), world.state_digest()
    if not all(isinstance(spec, ToolSpec) for spec in tools):
        raise TypeError("tools() must return ToolSpecs")
    strangers = sorted(set(allowed or ()) - {spec.name for spec in tools})
    if strangers:
        raise ValueError(f"allowed() names {', '.join(strangers)}, which tools() does not list")
    return View(
        tools=tools,
        allowed=None if allowed is None else tuple(allowed),
        potential=None if potential is None else as_real(potential, "potential()"),
        state_key=None if state_key is None else as_text(state_key, "state_key()"),
        digest=None if digest is None else as_text(digest, "state_digest()"),
    )
