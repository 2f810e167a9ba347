"""``kifu envs mine``."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, say
from kifu.envs.repositories.commits import Filters, HeldOut, mine_commits
from kifu.errors import UsageError

app = Application()
_DEFAULT = Filters()


@app.command()
@guarded
def mine(
    *,
    repositories: Annotated[
        list[str], typer.Argument(metavar="[NAME=]FOLDER", help="Git repositories on this machine.")
    ],
    out: Annotated[Path, typer.Option(help="File of records to write, for swe_rl@FILE.")],
    held_out_since: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Commits of this day (UTC) or later are held out.")
    ] = None,
    held_out_repository: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="All commits of this repository are held out.")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Source files; **/*.py when none is given.")
    ] = None,
    files: Annotated[int, typer.Option(min=1, help="Source files a commit may change.")] = _DEFAULT.files,
    lines: Annotated[int, typer.Option(min=1, help="Lines it may add and take out.")] = _DEFAULT.lines,
    as_json: AsJson = False,
) -> None:
    """Make change records out of the commits of git repositories, and say why the others are none."""
    if out.exists():
        raise UsageError(f"{out}: exists already; remove it, or name another file")
    filters = Filters(sources=tuple(source) if source else _DEFAULT.sources, files=files, lines=lines)
    since = None if held_out_since is None else held_out_since.replace(tzinfo=UTC)
    held_out = HeldOut(since=since, repositories=frozenset(held_out_repository or ()))
    found = mine_commits(_named(repositories), filters=filters, held_out=held_out)
    found.write(out)
    splits = [record["split"] for record in found.records]
    counts = {split: splits.count(split) for split in ("train", "held_out")}
    if as_json:
        dropped = {str(why): count for why, count in found.dropped.items()}
        document({"out": str(out), "commits": found.seen, "records": counts, "dropped": dropped})
        return
    table = grid("", "commits", "")
    for split, count in counts.items():
        table.add_row(*cells(count, f"records of split {split}"))
    for why, count in found.dropped.items():
        table.add_row(*cells(count, f"left out: {why}"))
    output().print(table)
    say(f"{found.seen:,} commits, {len(splits):,} records in {out}")


def _named(repositories: list[str]) -> dict[str, Path]:
    """Folders by name: the one given, or the last part of the path that says something."""
    found: dict[str, Path] = {}
    for item in repositories:
        name, _, folder = item.rpartition("=")
        path = Path(folder)
        name = name or path.resolve().name.removesuffix(".git") or path.resolve().parent.name
        if name in found:
            raise UsageError(f"two repositories are called {name!r}; write NAME=FOLDER")
        found[name] = path
    return found
