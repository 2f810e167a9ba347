"""What happened: tokens with origins, turns, outcomes, verdicts, trajectories and where they are kept."""

from kifu.records.atif import AgentCard, to_atif, to_messages
from kifu.records.audit import AskAgain, AuditReport, Heads, Recomputed, Replayed, Unrebuilt, audit_run
from kifu.records.blobs import BlobStore, pack_bitmap, unpack_bitmap
from kifu.records.builder import TapeBuilder, Written
from kifu.records.chain import GENESIS, Chain, ChainedLog, canonical, read_chain
from kifu.records.checks import Placed, placed_spans, pre_update_check, rebuild_check, turn_logprobs
from kifu.records.crash import CRASH_POINTS, crash_point
from kifu.records.files import file_digest, fsync_folder, replacing, write_atomically
from kifu.records.ledger import Bucket, Count, Ledger
from kifu.records.outcome import Outcome, Owner, StopReason, Verdict
from kifu.records.parts import Part, content_of
from kifu.records.plan import PlanLine, PlanLog, PlanRow, Run, ValueTarget, read_plan, runs_of
from kifu.records.planned import check_plan
from kifu.records.reader import Problem, RunReader
from kifu.records.rows import Row, content_digest, from_row, from_table, row_digest, to_row, to_table
from kifu.records.schema import EXCLUDED, FORMAT_VERSION, SCHEMA
from kifu.records.store import RunLock, RunStore, unfinished, writer_of
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
from kifu.records.weights import StoredWeights, Tensors, Version, WeightStore, weights_digest

__all__ = [
    "CRASH_POINTS",
    "EXCLUDED",
    "FORMAT_VERSION",
    "GENESIS",
    "SCHEMA",
    "VIEW_SCHEMA",
    "Action",
    "AgentCard",
    "AskAgain",
    "AuditReport",
    "BlobStore",
    "Bools",
    "Branch",
    "Bucket",
    "Chain",
    "ChainedLog",
    "Costs",
    "Count",
    "Durable",
    "EnvironmentRef",
    "Estimate",
    "Event",
    "Finish",
    "Floats",
    "Group",
    "Heads",
    "Ints",
    "Json",
    "Ledger",
    "Origin",
    "Outcome",
    "Owner",
    "Part",
    "Placed",
    "PlanLine",
    "PlanLog",
    "PlanRow",
    "Problem",
    "Provenance",
    "Purpose",
    "Recomputed",
    "Replayed",
    "RolloutKey",
    "Row",
    "Run",
    "RunLock",
    "RunReader",
    "RunStore",
    "Sampling",
    "Segment",
    "Span",
    "StopReason",
    "StoredWeights",
    "Support",
    "SupportKind",
    "Tape",
    "TapeBuilder",
    "TaskRef",
    "Tensors",
    "ToolCall",
    "ToolResult",
    "Trajectory",
    "Trust",
    "Turn",
    "Unrebuilt",
    "ValueTarget",
    "Verdict",
    "Version",
    "WeightStore",
    "Written",
    "as_floats",
    "as_ints",
    "audit_run",
    "canonical",
    "check_plan",
    "content_digest",
    "content_of",
    "crash_point",
    "file_digest",
    "from_row",
    "from_table",
    "fsync_folder",
    "pack_bitmap",
    "placed_spans",
    "pre_update_check",
    "read_chain",
    "read_plan",
    "rebuild_check",
    "replacing",
    "row_digest",
    "runs_of",
    "to_atif",
    "to_messages",
    "to_row",
    "to_table",
    "turn_logprobs",
    "unfinished",
    "unpack_bitmap",
    "view_rows",
    "view_table",
    "weights_digest",
    "write_atomically",
    "writer_of",
]
