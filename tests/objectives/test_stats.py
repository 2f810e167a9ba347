"""Statistics of micro-batches."""

from kifu.objectives import merge_stats


def test_counts_add_up_and_extremes_stay_extremes() -> None:
    """A micro-batch without tokens reports no extremes and must not invent one."""
    found = merge_stats(
        [
            {"tokens": 2, "log_ratio_max": 0.5, "log_ratio_min": -1},
            {"tokens": 0},
            {"tokens": 3, "log_ratio_max": 0.2, "log_ratio_min": -2},
        ]
    )
    assert found == {"tokens": 5.0, "log_ratio_max": 0.5, "log_ratio_min": -2.0}
