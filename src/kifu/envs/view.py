"""What an environment says about its present state, read in one go right after every call."""

from dataclasses import dataclass
from math import isfinite

from kifu.envs.contract import Environment
from kifu.envs.spec import ToolSpec


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
        ValueError: ``allowed`` names no tool, or the potential is not finite.
    """
    tools, allowed, potential = tuple(world.tools()), world.allowed(), world.potential()
    if not all(isinstance(spec, ToolSpec) for spec in tools):
        raise TypeError("tools() must return ToolSpecs")
    strangers = sorted(set(allowed or ()) - {spec.name for spec in tools})
    if strangers:
        raise ValueError(f"allowed() names {', '.join(strangers)}, which tools() does not list")
    if potential is not None and not isfinite(potential):
        raise ValueError(f"potential() is {potential}; it must be finite")
    return View(
        tools=tools,
        allowed=None if allowed is None else tuple(allowed),
        potential=potential,
        state_key=world.state_key(),
        digest=world.state_digest(),
    )
