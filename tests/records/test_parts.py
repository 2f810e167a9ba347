"""Parts are plain Parquet: other tools read them without kifu."""

from collections.abc import Callable
from pathlib import Path

import datasets
import duckdb
import pyarrow.parquet as pq
import pytest

from kifu.records import RunStore, Trajectory, view_table

Make = Callable[..., Trajectory]


@pytest.fixture
def part(make: Make, tmp_path: Path) -> Path:
    """A sealed part of two records, one without a verdict's score."""
    with RunStore(tmp_path) as store:
        for member in range(2):
            store.accept(make(member=member, score=None if member else 0.75)).result()
        sealed = store.seal(0)
        assert sealed is not None
    return tmp_path / "records" / sealed.part


def query(sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect() as connection:
        found: list[tuple[object, ...]] = connection.execute(sql).fetchall()
    return found


def test_duckdb_counts_sampled_tokens_with_plain_sql(part: Path) -> None:
    found = query(
        f"""
        SELECT trajectory_id, outcome.reason, verdict.score,
               sum(CASE WHEN span.origin = 'policy' THEN len(span.token_ids) ELSE 0 END) AS policy_tokens,
               sum(len(span.token_ids)) AS own_tokens
        FROM (SELECT *, unnest(tape.spans) AS span FROM (SELECT *, unnest(tapes) AS tape FROM '{part}'))
        GROUP BY ALL ORDER BY trajectory_id
        """
    )
    assert found == [
        ("train/s7/t00000/g0000/m000/a0", "success", 0.75, 3, 9),
        ("train/s7/t00000/g0000/m001/a0", "success", None, 3, 9),
    ]


def test_duckdb_reads_json_inside_a_column(part: Path) -> None:
    assert query(f"SELECT json_extract_string(turns[1].action.executed[1].arguments, '$.colour') FROM '{part}'") == [
        ("réd",),
        ("réd",),
    ]


def test_the_view_written_to_parquet_shows_masks_as_long_as_ids(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "view.parquet"
    pq.write_table(view_table([make()]), path)
    found = query(f"SELECT len(policy_mask), len(token_ids), list_sum(policy_mask::INT[]) FROM '{path}' ORDER BY tape")
    assert found == [(8, 8, 2), (7, 7, 1)]


def test_datasets_loads_a_part(part: Path, tmp_path: Path) -> None:
    loaded = datasets.load_dataset("parquet", data_files=str(part), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.num_rows == 2
    assert loaded[0]["tapes"][0]["spans"][1]["logprobs"] == [-0.5, -0.25]
    assert loaded[1]["verdict"]["score"] is None
