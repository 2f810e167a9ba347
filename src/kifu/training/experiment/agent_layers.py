"""Who acts, in layer 2: kifu's own strategy, or an agent outside that is heard through a gateway."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kifu.errors import nearest
from kifu.sandbox import DEFAULT_REQUIRED, Guarantee
from kifu.training.experiment.layer import Layer


class NoMemory(Layer):
    """The policy knows what stands in its context."""

    type: Literal["none"] = "none"


class KeyValueLayer(Layer):
    """Texts under keys, written and looked up by tools of their own; every rollout begins with none."""

    type: Literal["key_value"] = "key_value"
    entries: int = Field(default=16, ge=1)
    """Keys it holds."""
    characters: int = Field(default=200, ge=1)
    """Of one text."""


MemoryLayer = Annotated[NoMemory | KeyValueLayer, Field(discriminator="type")]


class ToolCalling(Layer):
    """kifu's own loop of turns and calls, in the environment."""

    type: Literal["tool_calling"] = "tool_calling"
    repair: Literal["none", "enum_arguments/1"] = "none"
    """Who rewrites a sampled call before it is executed. ``enum_arguments/1`` puts case and outer spaces of a listed
    value right."""
    memory: MemoryLayer = NoMemory()
    """What it can keep outside of the context."""


class AgentBox(Layer):
    """A sandbox of its own for every attempt, which reaches the gateway and nothing else."""

    files: str | None = None
    """A folder beside the experiment: the files among which the program starts."""
    python: str = "/usr/bin/python3"
    """An interpreter in the box; it leads the program's connections to the gateway."""
    seconds: float = Field(default=600.0, gt=0)
    """Of one attempt, by the clock and of every process's CPU time."""
    memory_mb: int = Field(default=1024, ge=64)
    """Of all processes together."""
    processes: int = Field(default=128, ge=8)
    backends: tuple[Literal["ns", "bwrap"], ...] = ("ns",)
    """Tried in this order; the first that proves what is required is used."""
    require: tuple[str, ...] = tuple(sorted(DEFAULT_REQUIRED))
    """Guarantees without which nothing runs."""

    @field_validator("require")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = [str(guarantee) for guarantee in Guarantee]
        for name in names:
            if name not in known:
                raise ValueError(f"no guarantee `{name}`; {nearest(name, known)}")
        return names

    @field_validator("backends", "require", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value


class OutsideAgentLayer(Layer):
    """An agent with its own loop and its own tools; the environment gives tasks and judges its answer."""

    type: Literal["outside"] = "outside"
    run: str | None = None
    """``file.py:function``: takes a task, a dictionary, and gives its answer; a process of its own for each attempt."""
    function: str | None = None
    """``file.py:name`` or ``module:name`` instead: what `kifu.agent` decorates, run inside kifu's process."""
    command: tuple[str, ...] | None = None
    """A program for each attempt instead; what it prints is its answer."""
    box: AgentBox | None = None
    """Where ``command`` runs, by its path in the box; None: as a process of the user."""
    verifier: str | None = None
    """``file.py:function`` or ``module:function`` of answer and task: judges what the agent answers; None: the
    environment hears the answer and judges."""
    gives: tuple[str, ...] = ()
    """Names of the task's data that the agent gets beside the prompt, e.g. what its tools look up."""

    @field_validator("command", "gives", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one_of_two(self) -> "OutsideAgentLayer":
        if sum(item is not None for item in (self.run, self.function, self.command)) != 1:
            raise ValueError("an outside agent is named by one of `run` (file.py:function), `function` and `command`")
        if self.run is not None and re.fullmatch(r".+\.py:[^\W\d]\w*", self.run) is None:
            raise ValueError("run: expected `path/to/file.py:function`")
        if self.command is not None and not self.command:
            raise ValueError("command: expected at least the name of a program")
        if self.box is not None and (self.command is None or not self.command[0].startswith("/")):
            raise ValueError("box: holds a `command` that begins with the program's absolute path in the box")
        return self


class FullHistory(Layer):
    """Every turn stays in the context."""

    type: Literal["full"] = "full"


class WindowHistory(Layer):
    """What stood before the first turn and the last turns stay; earlier ones are dropped, as a recorded event."""

    type: Literal["window"] = "window"
    turns: int = Field(ge=1)


class ClearedHistory(Layer):
    """Every turn stays, and the tool results of the last turns; earlier results are cleared, as a recorded event."""

    type: Literal["cleared_results"] = "cleared_results"
    turns: int = Field(ge=1)


HistoryLayer = Annotated[FullHistory | WindowHistory | ClearedHistory, Field(discriminator="type")]
AgentLayer = Annotated[ToolCalling | OutsideAgentLayer, Field(discriminator="type")]
