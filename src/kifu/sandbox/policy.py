"""What an environment asks of a sandbox, and what a call gives back to it."""

import hashlib
from dataclasses import dataclass, field

from kifu.errors import ArgumentError
from kifu.records import Json, canonical
from kifu.sandbox.contract import DEFAULT_REQUIRED, BoxPolicy, Guarantee, Limits, Mount, Reason, check_mounts
from kifu.sandbox.tools import Tool
from kifu.sandbox.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Files, tools, limits and the guarantees without which nothing runs."""

    base: Tree = field(default_factory=Tree)
    """Files of the box at the start; they belong to the box's user, so that all can be changed."""
    tools: tuple[Tool, ...] = ()
    limits: Limits = field(default_factory=Limits)
    mounts: tuple[Mount, ...] = ()
    require: frozenset[Guarantee] = DEFAULT_REQUIRED
    """What must be proved before a box is opened."""

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise ArgumentError(f"policy: two tools have one name: {sorted(names)}")
        check_mounts(self.mounts)

    @property
    def digest(self) -> str:
        """SHA-256 of all of it; base and mounts by digest and path."""
        plain: dict[str, Json] = {
            "base": self.base.digest,
            "tools": [repr(tool) for tool in self.tools],
            "limits": repr(self.limits),
            "mounts": [[mount.source, mount.target] for mount in self.mounts],
            "require": [str(guarantee) for guarantee in sorted(self.require)],
        }
        return hashlib.sha256(canonical(plain)).hexdigest()

    @property
    def box(self) -> BoxPolicy:
        """The back-end's part."""
        return BoxPolicy(base=self.base, limits=self.limits, mounts=self.mounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a tool call did."""

    tool: str
    reason: Reason
    code: int | None = None
    """Exit code, where the reason is `Reason.EXIT`; nothing else has a usable one."""
    signal: int | None = None
    out: bytes = b""
    err: bytes = b""
    total_bytes: int = 0
    """Written, kept or not."""
    is_truncated: bool = False
    """More was written than is kept."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    message: str = ""
    """What to tell the policy when its call did not run to its end."""
    why: str = ""
    """Why the sandbox could not begin it, for people; never shown to the policy, since it may name the host."""

    @property
    def is_ok(self) -> bool:
        """It ran to its end and reported success."""
        return self.reason is Reason.EXIT and self.code == 0

    @property
    def text(self) -> str:
        """Output, then errors, then the message: an observation for the policy. Untrusted."""
        parts = [self.out.decode("utf-8", "replace"), self.err.decode("utf-8", "replace"), self.message]
        return "\n".join(part.rstrip("\n") for part in parts if part)
