"""``kifu show``."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, percent, say
from kifu.dashboard import Transcript, decoder_of, memory_events, memory_lines, printable, transcript
from kifu.errors import UsageError
from kifu.monitor import RunFolder, reader_of
from kifu.records import Origin, Trajectory, content_digest

app = Application()

STYLES: Mapping[Origin, str] = {
    Origin.POLICY: "bold green",
    Origin.ENVIRONMENT: "cyan",
    Origin.PROMPT: "default",
    Origin.TEMPLATE: "bright_black",
    Origin.CONTROLLER: "magenta",
    Origin.FRAMEWORK: "yellow",
    Origin.DEMONSTRATION: "blue",
    Origin.EXTERNAL: "red",
}
"""How the terminal shows who wrote a token."""
MARK = "\u2039"
"""Opens the name of an origin where there are no colours; written out as an escape where a token has it."""


@app.command()
@guarded
def show(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; it may be written meanwhile.")],
    trajectory: Annotated[
        str | None, typer.Argument(metavar="TRAJECTORY", help="Id of one record; all are listed by default.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Records to list, the newest.")] = 40,
    tape: Annotated[int | None, typer.Option(min=0, help="One context of a record that has several.")] = None,
    as_json: AsJson = False,
) -> None:
    """List a run's records, or print one with every token's origin."""
    folder = RunFolder.open(run)
    reader = reader_of(folder)
    if trajectory is None:
        _list([_line(item) for item in reader.trajectories()], folder=folder, limit=limit, as_json=as_json)
        return
    found = reader.find(trajectory)
    if tape is not None and tape >= len(found.tapes):
        raise UsageError(f"{trajectory}: has {len(found.tapes)} tapes, found --tape {tape}; the first is 0")
    decode, why = decoder_of(folder)
    spaced = not folder.facts().get("model")
    tapes = range(len(found.tapes)) if tape is None else [tape]
    shown = [transcript(found, decode, tape=index, spaced=spaced) for index in tapes]
    if as_json:
        document(
            {
                **_line(found),
                "digest": content_digest(found),
                "note": why,
                "memory": [{"turn": turn, "kind": item.kind, **item.detail} for turn, item in memory_events(found)],
                "tapes": [_tape(item) for item in shown],
            }
        )
        return
    if why is not None:
        say(why)
    _print(found, shown)


def _line(item: Trajectory) -> dict[str, Any]:
    return {
        "trajectory": item.id,
        "purpose": item.key.purpose.value,
        "step": item.key.step,
        "task": item.task.id,
        "split": item.task.split,
        "turns": len(item.turns),
        "tokens": item.sampled_tokens,
        "reward": item.reward,
        "success": None if item.verdict is None else item.verdict.success,
        "stop_reason": item.outcome.reason.value,
    }


def _list(lines: list[dict[str, Any]], *, folder: RunFolder, limit: int, as_json: bool) -> None:
    if as_json:
        document(lines)
        return
    table = grid("", "trajectory", "task", "turns", "tokens", "reward", "stop reason")
    for line in lines[-limit:]:
        names = ("trajectory", "task", "turns", "tokens")
        table.add_row(*cells(*(line[name] for name in names), percent(line["reward"]), line["stop_reason"]))
    output().print(table)
    if len(lines) > limit:
        say(f"the newest {limit} of {len(lines):,}; --limit shows more")
    unlisted = sorted(path.name for path in folder.records.glob("part-*.parquet"))
    if lines:
        say(f"one of them, token by token: kifu show {folder.root} {lines[-1]['trajectory']}")
    elif unlisted:
        say(
            f"{folder.records}: no record is listed in manifest.jsonl, yet {unlisted[0]} to {unlisted[-1]} are there; "
            f"restore the manifest from a copy. `kifu audit {folder.root}` names all that is missing."
        )
    else:
        say(f"{folder.root}: no record yet; `kifu resume {folder.root}` goes on with it")


def _tape(item: Transcript) -> dict[str, Any]:
    return {
        "tape": item.tape,
        "forked_at": item.forked_at,
        "pieces": [
            {
                "text": piece.text,
                "origin": piece.origin.value,
                "turn": piece.turn,
                "token_ids": list(piece.token_ids),
                "logprob": piece.logprob,
            }
            for piece in item.pieces
        ],
    }


def _print(trajectory: Trajectory, shown: list[Transcript]) -> None:
    console = output()
    present = {piece.origin for item in shown for piece in item.pieces}
    legend = Text("origins  ")
    for origin, style in STYLES.items():
        if origin in present:
            legend.append(f"{origin.value} ", style=style)
    say(f"{trajectory.id}  task {trajectory.task.id}  environment {trajectory.environment.id}")
    console.print(legend)
    for item in shown:
        if len(shown) > 1:
            say(f"--- tape {item.tape}" + ("" if item.forked_at is None else f", shares {item.forked_at} tokens"))
        console.print(_coloured(item) if console.color_system else _marked(item))
    for turn in trajectory.turns:
        if turn.action.parse_error is not None:
            say(f"turn {turn.index}: not read as a call: {turn.action.parse_error}")
    for line in memory_lines(trajectory):
        say(line)
    outcome, verdict = trajectory.outcome, trajectory.verdict
    checks = {} if verdict is None else {**verdict.world_state_checks, **verdict.format_checks, **verdict.safety_checks}
    say(f"end      {outcome.reason.value} {outcome.detail}".rstrip())
    say(f"reward   {'none' if trajectory.reward is None else trajectory.reward:}")
    if checks:
        say("checks   " + "  ".join(f"{name} {'yes' if found else 'no'}" for name, found in sorted(checks.items())))


def _coloured(item: Transcript) -> Text:
    body = Text()
    for piece in item.pieces:
        body.append(printable(piece.text, keep="\n\t"), style=STYLES[piece.origin])
    return body


def _marked(item: Transcript) -> Text:
    """For pipes and files: every stretch begins with who wrote it, and no token can pretend to."""
    body = Text()
    for origin, pieces in groupby(item.pieces, lambda piece: piece.origin):
        body.append(f"{MARK}{origin.value}\u203a")
        for piece in pieces:
            body.append(printable(piece.text, keep="\n\t").replace(MARK, "\\u2039"))
    return body
