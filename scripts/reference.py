"""Write the pages derived from the source: the reference, the glossary of metrics, the snapshot of the public surface.

python scripts/reference.py docs|metrics|api|all [--check]

With ``--check`` nothing is written; files that are out of date are named, with the difference, and the exit code is 1.
"""

import argparse
import ast
import difflib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from surface import Room, Source, rooms

TOP = Path(__file__).resolve().parent.parent
HEAD = """# Reference

Every public name of every room, from the source; `make reference` writes this page. The full docstrings stand in the
code: `python -c "import kifu.records; help(kifu.records.Span)"`.
"""

METRICS_HEAD = """# Metrics

`metrics.jsonl` of a run holds one JSON object per step. Metrics are for people: no code reads one to decide anything.
`null` means that nobody has the number; it is never 0 instead. This page is written by `make reference` from the table
in `monitor/`, and writing a metric that is not in the table fails a test.
"""


def reference(found: list[Room]) -> str:
    """The page: one section per room, one entry per name."""
    parts = [HEAD]
    for room in found:
        parts.append(f"\n## {room.module}\n\n{room.summary}\n")
        for name in room.names:
            parts.append(f"\n### {room.module}.{name.name}\n\n")
            if name.summary:
                parts.append(f"{name.summary}\n\n")
            parts.append(f"```python\n{name.signature}\n```\n")
            if name.members:
                parts.append("\n")
            for member in name.members:
                parts.append(f"- `{member.text}`{': ' if member.summary else ''}{member.summary}\n")
    return "".join(parts)


def snapshot(found: list[Room]) -> str:
    """One line per name and member, so that a change of the surface is one line of a diff."""
    lines = []
    for room in found:
        for name in room.names:
            lines.append(f"{room.module}: {name.signature}")
            lines.extend(f"{room.module}: {name.name}. {member.text}" for member in name.members)
    return "\n".join(lines) + "\n"


def metrics(_: list[Room]) -> str:
    """The glossary: every metric and every family of metrics, with its meaning."""
    parts = [METRICS_HEAD]
    for title, table in (("metric", "METRICS"), ("family", "FAMILIES")):
        rows = _literal("kifu.monitor", table).items()
        parts.append(f"\n| {title} | meaning |\n| --- | --- |\n")
        parts.extend(f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |\n" for name, meaning in rows)
    return "".join(parts)


def _literal(module: str, name: str) -> Mapping[str, str]:
    node = Source(TOP / "src").find(module, name)
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        raise LookupError(f"{module} defines no table {name}")
    table: Mapping[str, str] = ast.literal_eval(node.value)
    return table


TARGETS: Mapping[str, tuple[Path, Callable[[list[Room]], str]]] = {
    "docs": (TOP / "docs" / "reference.md", reference),
    "metrics": (TOP / "docs" / "metrics.md", metrics),
    "api": (TOP / "tests" / "house" / "public_api.txt", snapshot),
}


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=[*TARGETS, "all"])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    options = parser.parse_args(arguments)
    found = list(rooms(TOP / "src"))
    stale = False
    for what, (path, render) in TARGETS.items():
        if options.what not in (what, "all"):
            continue
        wanted, present = render(found), path.read_text() if path.exists() else ""
        if wanted == present:
            continue
        if not options.check:
            path.write_text(wanted)
            continue
        stale = True
        name = str(path.relative_to(TOP))
        changes = difflib.unified_diff(present.splitlines(), wanted.splitlines(), name, "the source", lineterm="", n=0)
        print(f"{name} is out of date; `make reference` writes it again:", *changes, sep="\n")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
