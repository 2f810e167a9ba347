"""The progress line, compared with the picture in the README."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kifu.monitor import Progress, StepView, sparkline, step_line

_VIEW = StepView(
    step=5,
    steps=12,
    success=[0.05, 0.2, 0.55, 0.9, 0.97],
    informative=2,
    groups=6,
    rollouts=96,
    rollouts_s=3.14,
    trained_tokens=612,
    nodes=1940,
)


def test_the_line_reads_as_documented() -> None:
    """The whole line, character by character."""
    assert step_line(_VIEW) == (
        "step  5/12  success ▁▂▅▇█ 0.97  informative 2/6  96 rollouts 3.1 s  "
        "trained 612 tokens of 1,940 nodes  ledger closed"
    )


def test_an_open_ledger_and_an_absent_success_are_visible() -> None:
    """No verdict is a dash, not 0.00."""
    line = step_line(replace(_VIEW, success=[None], ledger_closed=False, note="evaluating"))

    assert "ledger OPEN" in line
    assert "success   -" in line
    assert line.endswith("evaluating")


def test_what_the_collector_cut_is_told_beside_the_rollouts() -> None:
    """Success over rollouts of which many were cut says little."""
    assert "  96 rollouts 3.1 s, 12 cut  trained" in step_line(replace(_VIEW, cut=12))


def test_demonstrations_are_not_called_the_policy_s_success() -> None:
    """Imitation has no rollouts and no informative groups."""
    line = step_line(replace(_VIEW, success=[0.875], demonstrated=True, rollouts=8, note="warm start"))

    assert line == (
        "step  5/12  given attempts succeed 0.88  8 traces 3.1 s  "
        "trained 612 tokens of 1,940 nodes  ledger closed  warm start"
    )


def test_a_sparkline_keeps_the_last_values_and_shows_gaps() -> None:
    """0 is the lowest bar, 1 the highest, absent a blank."""
    assert sparkline([0.0, 1.0, None, 0.5]) == "▁█ ▅"
    assert sparkline([0.0] * 5 + [1.0] * 3, width=4) == "▁███"


def test_a_pipe_gets_one_plain_line_a_step() -> None:
    """Nothing is redrawn, wrapped or coloured where the output is a file."""
    out = io.StringIO()
    with Progress(console=Console(file=out, width=40)) as progress:
        progress.say("model ready")
        progress.update(_VIEW)
        progress.update(replace(_VIEW, step=6))

    assert out.getvalue().splitlines() == ["model ready", step_line(_VIEW), step_line(replace(_VIEW, step=6))]


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_written_where_quiet_was_asked_for(terminal: bool) -> None:
    """Quiet wins over a terminal and over a pipe."""
    out = io.StringIO()
    with Progress(quiet=True, console=Console(file=out, force_terminal=terminal)) as progress:
        progress.say("model ready")
        progress.update(_VIEW)

    assert out.getvalue() == ""


def test_a_terminal_gets_the_line_and_the_cursor_back() -> None:
    """The last control sequence shows the cursor again; brackets are not read as markup."""
    out = io.StringIO()
    with Progress(console=Console(file=out, force_terminal=True, width=140)) as progress:
        progress.say("model ready [ok]")
        progress.update(_VIEW)

    assert "model ready [ok]" in out.getvalue()
    assert step_line(_VIEW) in out.getvalue()
    assert out.getvalue().rstrip().endswith("\x1b[?25h")
