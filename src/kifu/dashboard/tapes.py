"""Transcripts as HTML: every token coloured by who wrote it, its logprob on hover."""

from collections.abc import Sequence

from kifu.dashboard.decode import Decode
from kifu.dashboard.reading import RunView
from kifu.dashboard.svg import shown
from kifu.dashboard.text import printable
from kifu.dashboard.transcript import Piece, memory_lines, transcript
from kifu.records import Origin, Purpose, Trajectory


def legend(origins: Sequence[Origin]) -> str:
    """Colours of the origins that occur."""
    return '<p class="legend">' + "".join(f'<span class="o {item}">{item}</span>' for item in origins) + "</p>"


def chosen(run: RunView, count: int) -> list[Trajectory]:
    """Records worth a look: from the last and from earlier evaluations and training steps, failures among them."""
    items = list(run.trajectories.values())
    evaluated = sorted((item for item in items if item.key.purpose is Purpose.EVALUATION), key=lambda item: item.key)
    trained = sorted((item for item in items if item.key.purpose is not Purpose.EVALUATION), key=lambda item: item.key)
    last = evaluated[-1].key.step if evaluated else 0
    latest = [item for item in evaluated if item.key.step == last]
    first = [item for item in evaluated if item.key.step != last]
    quarter = max(1, count // 4)
    picked = (
        _mixed(latest, quarter) + _mixed(first, quarter) + _mixed(trained[::-1], quarter) + _mixed(trained, quarter)
    )
    unique = {item.id: item for item in picked}
    return list(unique.values())[:count]


def _mixed(items: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """The first of each stop reason, then the first ones."""
    by_reason = {item.outcome.reason: item for item in reversed(items)}
    rest = [item for item in items if item.id not in {first.id for first in by_reason.values()}]
    return [*by_reason.values(), *rest][:count]


def tape(trajectory: Trajectory, decode: Decode, *, spaced: bool, is_open: bool = False) -> str:
    """One record with all its contexts."""
    verdict = trajectory.verdict
    reward = "no reward" if trajectory.reward is None else f"reward {trajectory.reward:.3g}"
    head = f"{trajectory.id} · task {trajectory.task.id} · {trajectory.outcome.reason.value} · {reward}"
    parts = [f"<details{' open' if is_open else ''}><summary>{shown(head)}</summary>"]
    for index in range(len(trajectory.tapes)):
        found = transcript(trajectory, decode, tape=index, spaced=spaced)
        if found.forked_at is not None:
            parts.append(f'<div class="quiet">tape {index}, shares {found.forked_at} tokens with its parent</div>')
        parts.append(f'<div class="tape">{"".join(_piece(piece) for piece in found.pieces)}</div>')
    parts += [f'<div class="quiet">{shown(printable(line))}</div>' for line in memory_lines(trajectory)]
    if trajectory.outcome.detail:
        parts.append(f'<div class="quiet">{shown(trajectory.outcome.detail)}</div>')
    if verdict is not None:
        checks = {**verdict.world_state_checks, **verdict.format_checks, **verdict.safety_checks}
        listed = " · ".join(f"{name} {'yes' if value else 'no'}" for name, value in sorted(checks.items()))
        parts.append(f'<div class="quiet">{shown(listed)}</div>')
    return "".join(parts) + "</details>"


def _piece(piece: Piece) -> str:
    ids = " ".join(map(str, piece.token_ids))
    title = f"{piece.origin.value} · turn {piece.turn} · id {ids}"
    if piece.logprob is not None:
        title += f" · logprob {piece.logprob:.4f}"
    text = shown(printable(piece.text, keep="\n\t"))
    return f'<span class="o {piece.origin.value}" title="{shown(title)}">{text}</span>'
