"""What a run looks like from outside while it works: folder, metrics, timings, progress, TensorBoard events."""

from kifu.monitor.events import EventWriter
from kifu.monitor.facts import GATEWAY, PROTOCOL_FILE, RUN_FORMAT, RunFacts
from kifu.monitor.memory import peak_rss_bytes, release_free_memory
from kifu.monitor.metrics import (
    FAMILIES,
    METRICS,
    MetricsWriter,
    MetricValue,
    StepMetrics,
    collection_s,
    read_metrics,
    time_shares,
    undocumented,
)
from kifu.monitor.progress import Progress, StepView, sparkline, step_line
from kifu.monitor.protocol import Tables, leaves, read_protocol
from kifu.monitor.runfolder import (
    RunFolder,
    begun,
    discard,
    not_begun,
    protocol_problem,
    reader_of,
    require_free,
    write_atomic,
    write_json,
)
from kifu.monitor.timings import Stage, Stopwatch, Timings

__all__ = [
    "FAMILIES",
    "GATEWAY",
    "METRICS",
    "PROTOCOL_FILE",
    "RUN_FORMAT",
    "EventWriter",
    "MetricValue",
    "MetricsWriter",
    "Progress",
    "RunFacts",
    "RunFolder",
    "Stage",
    "StepMetrics",
    "StepView",
    "Stopwatch",
    "Tables",
    "Timings",
    "begun",
    "collection_s",
    "discard",
    "leaves",
    "not_begun",
    "peak_rss_bytes",
    "protocol_problem",
    "read_metrics",
    "read_protocol",
    "reader_of",
    "release_free_memory",
    "require_free",
    "sparkline",
    "step_line",
    "time_shares",
    "undocumented",
    "write_atomic",
    "write_json",
]
