"""One self-contained page about a run. It loads nothing and runs no script: its policy forbids both."""

from pathlib import Path

from kifu.dashboard import sections
from kifu.dashboard.decode import decoder_of
from kifu.dashboard.reading import RunView, read_run
from kifu.dashboard.svg import shown
from kifu.dashboard.tapes import chosen, legend, tape
from kifu.monitor import require_free, write_atomic
from kifu.records import Origin

_CSS = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(root: Path | str, *, out: Path | None = None, transcripts: int = 12) -> Path:
    """Write the page of a run and give its path.

    Args:
        root: the run folder; another process may be writing it.
        out: a new file; ``report.html`` in the run folder when None, replaced whole.
        transcripts: how many to put in.

    Raises:
        StorageError: no run there, or `out` exists or lies in a run, or the page cannot be written.
        AlteredError: the run differs from what was promised.
    """
    run = read_run(root)
    path = out if out is not None else run.folder.report
    if path.resolve() != run.folder.report.resolve():
        require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render_report(run, transcripts=transcripts).encode())
    return path


def render_report(run: RunView, *, transcripts: int = 12) -> str:
    """The page as text."""
    parts = (
        sections.header(run),
        sections.curves(run),
        sections.efficiencies(run),
        sections.audit(run),
        sections.ledger(run),
        sections.weights(run),
        _transcripts(run, transcripts),
        sections.cards(run),
        sections.protocol(run),
    )
    title = f"{run.began.name} · seed {run.began.seed} · kifu"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><title>{shown(title)}</title><style>{_CSS.read_text(encoding="utf-8")}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _transcripts(run: RunView, count: int) -> str:
    decode, why = decoder_of(run.folder)
    picked = chosen(run, count) if count else []
    present = {span.origin for item in picked for one in item.tapes for span in one.spans}
    spaced = not run.facts.get("model")
    note = "" if why is None else f'<p class="quiet">{shown(why)}</p>'
    bodies = [tape(item, decode, spaced=spaced, is_open=at == 0) for at, item in enumerate(picked)]
    return (
        f"<h2>Transcripts</h2>{note}{legend([origin for origin in Origin if origin in present])}"
        f'<p class="quiet">Hover a token for its origin, id and logprob. {len(picked)} of '
        f"{len(run.trajectories):,} records; <code>kifu show RUN TRAJECTORY</code> prints any.</p>{''.join(bodies)}"
    )
