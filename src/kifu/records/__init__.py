"""What happened: tokens with origins, turns, outcomes, verdicts, trajectories and where they are kept."""

from kifu.records.blobs import BlobStore, pack_bitmap, unpack_bitmap
from kifu.records.builder import TapeBuilder, Written
from kifu.records.chain import GENESIS, Chain, ChainedLog, canonical, read_chain
from kifu.records.crash import CRASH_POINTS, crash_point
from kifu.records.files import file_digest, fsync_folder, replacing, write_atomically
from kifu.records.outcome import Outcome, Owner, StopReason, Verdict
from kifu.records.parts import Part, content_of
from kifu.records.reader import Problem, RunReader
from kifu.records.rows import Row, content_digest, from_row, from_table, row_digest, to_row, to_table
from kifu.records.schema import EXCLUDED, FORMAT_VERSION, SCHEMA
from kifu.records.store import RunLock, RunStore
from kifu.records.tokens import (
    Bools,
    Floats,
    Ints,
    Origin,
    Sampling,
    Span,
    Support,
    SupportKind,
    Tape,
    as_floats,
    as_ints,
)
from kifu.records.trajectory import (
    Branch,
    Costs,
    EnvironmentRef,
    Group,
    Provenance,
    Purpose,
    RolloutKey,
    Segment,
    TaskRef,
    Trajectory,
)
from kifu.records.turns import Action, Estimate, Event, Finish, Json, ToolCall, ToolResult, Trust, Turn
from kifu.records.view import VIEW_SCHEMA, view_rows, view_table
from kifu.records.wal import Durable

__all__ = [
    "CRASH_POINTS",
    "EXCLUDED",
    "FORMAT_VERSION",
    "GENESIS",
    "SCHEMA",
    "VIEW_SCHEMA",
    "Action",
    "BlobStore",
    "Bools",
    "Branch",
    "Chain",
    "ChainedLog",
    "Costs",
    "Durable",
    "EnvironmentRef",
    "Estimate",
    "Event",
    "Finish",
    "Floats",
    "Group",
    "Ints",
    "Json",
    "Origin",
    "Outcome",
    "Owner",
    "Part",
    "Problem",
    "Provenance",
    "Purpose",
    "RolloutKey",
    "Row",
    "RunLock",
    "RunReader",
    "RunStore",
    "Sampling",
    "Segment",
    "Span",
    "StopReason",
    "Support",
    "SupportKind",
    "Tape",
    "TapeBuilder",
    "TaskRef",
    "ToolCall",
    "ToolResult",
    "Trajectory",
    "Trust",
    "Turn",
    "Verdict",
    "Written",
    "as_floats",
    "as_ints",
    "canonical",
    "content_digest",
    "content_of",
    "crash_point",
    "file_digest",
    "from_row",
    "from_table",
    "fsync_folder",
    "pack_bitmap",
    "read_chain",
    "replacing",
    "row_digest",
    "to_row",
    "to_table",
    "unpack_bitmap",
    "view_rows",
    "view_table",
    "write_atomically",
]
