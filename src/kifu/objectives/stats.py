"""Adding up the statistics of micro-batches."""

from collections.abc import Iterable, Mapping


def merge_stats(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Combine what micro-batches reported: names ending in ``_max`` or ``_min`` by extreme, all others by sum."""
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            number = float(value)
            if name not in found:
                found[name] = number
            elif name.endswith("_max"):
                found[name] = max(found[name], number)
            elif name.endswith("_min"):
                found[name] = min(found[name], number)
            else:
                found[name] += number
    return found
