"""Looking at runs: transcripts with origins, charts, one page about everything. Reads run folders only."""

from kifu.dashboard.curve import learning_curve
from kifu.dashboard.decode import Decode, decoder_of
from kifu.dashboard.estimate import estimate_curve
from kifu.dashboard.report import render_report, write_report
from kifu.dashboard.text import printable
from kifu.dashboard.transcript import Piece, Transcript, memory_events, memory_lines, transcript

__all__ = [
    "Decode",
    "Piece",
    "Transcript",
    "decoder_of",
    "estimate_curve",
    "learning_curve",
    "memory_events",
    "memory_lines",
    "printable",
    "render_report",
    "transcript",
    "write_report",
]
