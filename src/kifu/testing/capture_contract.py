"""What a capture gateway must show to be checked: sessions, and for each the rows a trainer would get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from kifu.errors import KifuError
from kifu.testing.capture_model import FakeModel


class CaptureCheckError(KifuError, AssertionError):
    """A gateway breaks a case."""


class NotOffered(KifuError):
    """A gateway has nothing of the kind; the message says so in words for the report."""


class Met(StrEnum):
    """What became of a case."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token of a row."""

    id: int
    trained: bool = False
    logprob: float | None = None
    version: int | None = None
    """Of the weights, as the record names it."""
    sampling: Mapping[str, float | None] | None = None
    """Effective ``temperature`` and ``top_p``, as the record names them; None when it names none."""


Row: TypeAlias = tuple[Token, ...]
"""A context with what was sampled in it, in the order the model saw it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The record of one session."""

    rows: tuple[Row, ...]
    withheld: int = 0
    """Sampled tokens that are in the record and not trained, with a reason."""
    reward: float | None = None
    has_failed: bool = False
    """Whether the record says that the agent failed."""
    text: str = ""
    """The whole record as text, to look for what was noted."""

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(token.trained for row in self.rows for token in row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What an agent gets."""

    id: str
    base_url: str
    """With ``/v1``."""
    key: str
    model: str
    judge_key: str = ""
    """For whoever gives the reward, where there is a key for it."""

    @property
    def root(self) -> str:
        """The base URL without ``/v1``, as Anthropic's clients want it."""
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A request that an agent must not be allowed to make."""

    what: str
    method: str
    url: str
    body: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a gateway says of itself."""

    not_claimed: Mapping[str, str] = field(default_factory=dict)
    """Name of a case to why its outcome is not held against the gateway."""
    not_offered: Mapping[str, str] = field(default_factory=dict)
    """Name of a case to why it cannot be asked."""


class CaptureSubject(Protocol):
    """A gateway under check, in front of a fake model. Whatever it has not got raises `NotOffered`."""

    name: str
    claims: Claims

    async def start(self, model: FakeModel, url: str) -> None:
        """Bring the gateway up in front of the model server at ``url`` and wait until it answers."""
        ...

    async def stop(self, *, kill: bool = False) -> None:
        """End it; ``kill`` as SIGKILL does. `start` afterwards finds what was durable."""
        ...

    async def open(self, task: str) -> Session:
        """Begin a session."""
        ...

    async def finish(self, session: Session, *, reward: float | None = None, has_failed: bool = False) -> Kept:
        """Give the reward as the verifier would, end the session and read its record."""
        ...

    async def read(self, session: Session) -> Kept:
        """Read the record of a finished session again."""
        ...

    def forbidden(self, session: Session) -> Sequence[Probe]:
        """What the session's key must not do: read records, write rewards, administrate."""
        ...

    async def publish(self, version: int) -> None:
        """Tell the gateway that the weights have a new version, where it does not learn it from the model."""
        ...
