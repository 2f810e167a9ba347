"""The table is plain, versioned, and old files stay readable."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kifu.errors import FormatError
from kifu.records import FORMAT_VERSION, SCHEMA, Trajectory, content_digest, from_table, to_table
from kifu.records.schema import EXCLUDED

GOLDEN = Path(__file__).parent / "golden"


def leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from leaves(field.type)
    elif pa.types.is_list(kind):
        yield from leaves(kind.value_type)
    else:
        yield kind


def test_only_plain_types_are_used() -> None:
    found = {str(leaf) for field in SCHEMA for leaf in leaves(field.type)}
    assert found <= {"int32", "int64", "float", "double", "bool", "string"}


def test_every_excluded_path_names_a_column() -> None:
    for path in EXCLUDED:
        kind: pa.DataType = pa.struct(list(SCHEMA))
        for name in path.split("."):
            kind = kind.value_type if pa.types.is_list(kind) else kind
            assert pa.types.is_struct(kind), path
            assert kind.get_field_index(name) >= 0, path
            kind = kind.field(name).type


def test_a_newer_format_is_refused_and_both_versions_are_named() -> None:
    newer = to_table([]).replace_schema_metadata({"kifu_format": str(FORMAT_VERSION + 1)})
    with pytest.raises(FormatError, match=rf"part 7: record format {FORMAT_VERSION + 1}.* up to {FORMAT_VERSION}"):
        list(from_table(newer, where="part 7"))


def test_a_table_of_something_else_is_refused() -> None:
    with pytest.raises(FormatError, match="no record format"):
        list(from_table(pa.table({"x": [1]})))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("format-*.parquet")), ids=lambda path: path.stem)
def test_records_of_every_format_stay_readable_with_the_same_digests(path: Path) -> None:
    records: list[Trajectory] = list(from_table(pq.read_table(path)))
    assert {record.id: content_digest(record) for record in records} == json.loads(
        path.with_suffix(".json").read_text()
    )


def test_there_is_a_golden_file_of_this_format() -> None:
    assert (GOLDEN / f"format-{FORMAT_VERSION}.parquet").exists()
