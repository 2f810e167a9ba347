"""``kifu lab``: small worlds with exact answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, document, guarded, help_if_alone, say
from kifu.dashboard import estimate_curve
from kifu.errors import ArgumentError
from kifu.lab import (
    degenerate_probability,
    discounted_returns,
    exact_exits,
    expected_groups,
    informative_probability,
    monte_carlo,
    policy_entropy,
    softmax_with_temperature,
)
from kifu.monitor import require_free, write_atomic

_RAREST = 1e-300

app = Application(invoke_without_command=True)
app.callback(help="Small worlds with exact answers.")(help_if_alone)


def _show(found: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        document(found)
        return
    for name, value in found.items():
        say(f"{name.replace('_', ' '):<18} {value}")


def _numbers(text: str, what: str) -> list[float]:
    try:
        return [float(item) for item in text.split(",")]
    except ValueError as cause:
        raise ArgumentError(f"{what}: found {text!r}, expected numbers separated by commas, e.g. 2,1,0,-1") from cause


@contextmanager
def _finite(what: str) -> Iterator[None]:
    """Refuse numbers whose results no float can hold."""
    try:
        with np.errstate(over="raise", invalid="raise"):
            yield
    except FloatingPointError as cause:
        raise ArgumentError(
            f"{what}: the result is beyond what a float can hold ({cause}); give smaller ones"
        ) from cause


@app.command()
@guarded
def corridor(
    *,
    episodes: Annotated[int, typer.Option(max=1_000_000, help="Episodes of the estimate.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the estimate.")] = 7,
    max_steps: Annotated[int, typer.Option(max=10_000, help="Steps after which an episode is cut.")] = 20,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the estimate against N, with its band.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """A symmetric walk over five cells: Monte-Carlo estimate and exact value of the same protocol."""
    found = monte_carlo(episodes=episodes, seed=seed, max_steps=max_steps)
    exits = exact_exits(max_steps=max_steps)
    figures: dict[str, object] = {
        "estimate": found.mean,
        "exact": float(exits.right),
        "standard_error": found.standard_error,
        "left": float(exits.left),
        "cut": float(exits.cut),
        "draws": found.draws,
    }
    if plot is not None:
        title = (
            f"the walk's estimated value after n of {episodes} episodes, seed {seed}, and {exits.right}, its exact one"
        )
        drawn = estimate_curve(found.running().tolist(), exact=float(exits.right), title=title)
        require_free(plot)
        write_atomic(plot, drawn.encode())
        figures["plot"] = str(plot)
    _show(figures, as_json=as_json)


@app.command()
@guarded
def softmax(
    *,
    logits: Annotated[str, typer.Option(help="Numbers separated by commas.")],
    temperature: Annotated[float, typer.Option(help="Divides the logits.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Probabilities and entropy (nats) of a softmax policy."""
    values = _numbers(logits, "--logits")
    figures: dict[str, object] = {
        "probabilities": softmax_with_temperature(values, temperature).tolist(),
        "entropy": policy_entropy(values, temperature),
    }
    _show(figures, as_json=as_json)


@app.command("return")
@guarded
def returns(
    *,
    rewards: Annotated[str, typer.Option(help="Numbers separated by commas.")],
    gamma: Annotated[float, typer.Option(help="Discount in [0, 1].")],
    as_json: AsJson = False,
) -> None:
    """Discounted return from every step on."""
    with _finite("--rewards"):
        found = discounted_returns(_numbers(rewards, "--rewards"), gamma=gamma)
    _show({"returns": found.tolist()}, as_json=as_json)


@app.command()
@guarded
def groups(
    *,
    p: Annotated[float, typer.Option(help="Probability that one attempt succeeds.")],
    size: Annotated[int, typer.Option(max=1_000_000_000, help="Attempts in a group.")],
    as_json: AsJson = False,
) -> None:
    """How often a group of attempts with a binary reward can teach anything."""
    if 0.0 < p < _RAREST:
        raise ArgumentError(
            f"--p: found {p}, expected 0 or at least {_RAREST}: the groups to wait for are more than a float can hold"
        )
    figures: dict[str, object] = {
        "informative": informative_probability(p, size=size),
        "degenerate": degenerate_probability(p, size=size),
        "expected_groups": expected_groups(p, size=size),
    }
    if figures["expected_groups"] is None and not as_json:
        figures["expected_groups"] = "never: no group has two outcomes"
    _show(figures, as_json=as_json)
