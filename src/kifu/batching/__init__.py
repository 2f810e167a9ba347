"""From records with credit to what a trainer is given."""

from kifu.batching.contracts import Doubles, Occurrences, PackedBatch, Row, Tree, ValueTargets

__all__ = ["Doubles", "Occurrences", "PackedBatch", "Row", "Tree", "ValueTargets"]
