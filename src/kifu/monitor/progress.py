"""One line that tells how a run is doing."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], *, width: int = 12) -> str:
    """The last ``width`` values, each in [0, 1], as bars; an absent value is a gap."""
    bars = [" " if value is None else _BARS[round(7 * min(1.0, max(0.0, value)))] for value in values[-width:]]
    return "".join(bars)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """What the line shows about one step."""

    step: int
    """Steps done."""
    steps: int
    """Steps planned."""
    success: Sequence[float | None]
    """Mean success of every step so far; None where no rollout had a verdict."""
    informative: int
    """Groups whose rewards differ."""
    groups: int
    rollouts: int
    rollouts_s: float
    """Wall seconds of collection."""
    trained_tokens: int
    nodes: int
    """Positions the trainer forwarded."""
    cut: int = 0
    """Rollouts the collector cut; what they would have come to is unknown."""
    ledger_closed: bool = True
    demonstrated: bool = False
    """Whether the attempts are demonstrations: their success is that of whoever showed them, not of the policy."""
    note: str = ""
    """What is going on right now, e.g. ``evaluating``."""


def step_line(view: StepView) -> str:
    """The line as plain text."""
    last = next((value for value in reversed(view.success) if value is not None), None)
    done = f"{view.step}/{view.steps}"
    mean = "-" if last is None else f"{last:.2f}"
    shown = (
        [f"given attempts succeed {mean}"]
        if view.demonstrated
        else [f"success {sparkline(view.success)} {mean}", f"informative {view.informative}/{view.groups}"]
    )
    made = "traces" if view.demonstrated else "rollouts"
    cut = f", {view.cut:,} cut" if view.cut else ""
    parts = [
        f"step {done:>5}",
        *shown,
        f"{view.rollouts:,} {made} {view.rollouts_s:.1f} s{cut}",
        f"trained {view.trained_tokens:,} tokens of {view.nodes:,} nodes",
        "ledger closed" if view.ledger_closed else "ledger OPEN",
    ]
    return "  ".join(parts + ([view.note] if view.note else []))


class Progress:
    """Shows the line while a run works: kept up to date on a terminal, one line a step in a pipe or a file.

    Args:
        quiet: say nothing, e.g. with ``--json``.
        console: where to draw; standard error by default, so that results on standard output stay clean.
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self.is_silent = quiet
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self.is_silent and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, view: StepView) -> None:
        """Redraw the line, or write the next one where nothing can be redrawn."""
        if self._live is None:
            self.say(step_line(view))
        else:
            self._live.update(Text(step_line(view), no_wrap=True, overflow="ellipsis"), refresh=True)

    def wait(self, text: str) -> None:
        """Show what is being waited for, until the next `update`; a line of its own where nothing can be redrawn."""
        if self._live is None:
            self.say(text)
        else:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def say(self, text: str) -> None:
        """Print a line that stays, above the moving one."""
        if not self.is_silent:
            self._console.print(Text(text), soft_wrap=True)
