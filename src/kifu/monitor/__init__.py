"""What a run looks like from outside while it works: folder, metrics, timings, progress, TensorBoard events."""

from kifu.monitor.events import EventWriter
from kifu.monitor.memory import peak_rss_bytes, release_free_memory
from kifu.monitor.metrics import FAMILIES, METRICS, MetricsWriter, MetricValue, StepMetrics, read_metrics, undocumented
from kifu.monitor.progress import Progress, StepView, sparkline, step_line
from kifu.monitor.runfolder import (
    PROTOCOL_FILE,
    RUN_FORMAT,
    RunFolder,
    discard,
    protocol_problem,
    write_atomic,
    write_json,
)
from kifu.monitor.timings import Stage, Stopwatch, Timings

__all__ = [
    "FAMILIES",
    "METRICS",
    "PROTOCOL_FILE",
    "RUN_FORMAT",
    "EventWriter",
    "MetricValue",
    "MetricsWriter",
    "Progress",
    "RunFolder",
    "Stage",
    "StepMetrics",
    "StepView",
    "Stopwatch",
    "Timings",
    "discard",
    "peak_rss_bytes",
    "protocol_problem",
    "read_metrics",
    "release_free_memory",
    "sparkline",
    "step_line",
    "undocumented",
    "write_atomic",
    "write_json",
]
