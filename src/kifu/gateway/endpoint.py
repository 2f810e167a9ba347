"""What an outside agent is given and what it leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kifu.envs import Task

_PRIVATE = ("OPENAI_", "ANTHROPIC_", "KIFU_")


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that an agent may see: none that hold keys of vendors or of kifu."""
    return {name: value for name, value in environment.items() if not name.startswith(_PRIVATE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where an agent finds its policy."""

    base_url: str
    """With ``/v1``, as OpenAI's clients take it; Anthropic's take it without."""
    key: str
    model: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables that clients read by themselves."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.key,
            "ANTHROPIC_MODEL": self.model,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What an agent left behind; the verifier looks at it."""

    value: object = None
    """Returned by a function."""
    output: str = ""
    """Printed by a command, its end."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """About how it ran, for the record."""

    @property
    def text(self) -> str:
        """The answer as text: what a function returned, else what a command printed."""
        if self.value is None:
            return self.output.strip()
        return self.value if isinstance(self.value, str) else str(self.value)


class OutsideAgent(Protocol):
    """An agent that gets nothing but a task and an endpoint."""

    @property
    def id(self) -> str:
        """Name and version, for the record."""
        ...

    async def run(self, task: Task, endpoint: Endpoint) -> Ran:
        """Attempt a task.

        Raises:
            AgentFailure: it broke, which says nothing about the policy.
        """
        ...
