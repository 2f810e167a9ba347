"""From records with credit to what a trainer is given."""

from kifu.batching.contracts import Doubles, Observations, Occurrences, PackedBatch, Row, Tree, ValueTargets
from kifu.batching.plan import Layout, PackingReport, pack_rows, report
from kifu.batching.tree import Cost

__all__ = [
    "Cost",
    "Doubles",
    "Layout",
    "Observations",
    "Occurrences",
    "PackedBatch",
    "PackingReport",
    "Row",
    "Tree",
    "ValueTargets",
    "pack_rows",
    "report",
]
