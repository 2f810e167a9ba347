"""Lines of the log of effects that an environment in a child process writes: kept there, written by the parent.

The child has a log of its own in a temporary folder. With each answer it sends what is new in it, and the parent writes
that to the episode's chain, in order. Times are those of the parent.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kifu.sandbox import EFFECTS, EffectFile, EffectLog, Pending, Phase, read_effects


class Kept:
    """The child's end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kifu-effects-")
        self._file = EffectFile(Path(self._folder.name) / EFFECTS)
        self.log = self._file.chain("child")
        self._sent = 0

    def news(self) -> list[dict[str, Any]]:
        """Lines since the last answer."""
        lines = read_effects(self._file.path)[self._sent :]
        self._sent += len(lines)
        return [
            {
                "phase": line.phase,
                "kind": line.kind,
                "tool": line.tool,
                "arguments": dict(line.arguments),
                "facts": dict(line.facts),
                "digest": line.digest,
            }
            for line in lines
        ]

    def close(self) -> None:
        """Remove the log."""
        self._file.close()
        self._folder.cleanup()


class Relay:
    """The parent's end."""

    def __init__(self, log: EffectLog) -> None:
        self._log = log
        self._pending: dict[str, Pending] = {}

    def write(self, lines: list[Mapping[str, Any]]) -> None:
        """Write what a child sent."""
        for line in lines:
            kind, tool, facts = str(line["kind"]), str(line["tool"]), dict(line["facts"])
            match Phase(line["phase"]):
                case Phase.BEGIN:
                    begun = self._log.begin(kind, tool=tool, arguments=line["arguments"], facts=facts)
                    self._pending[str(line["digest"])] = begun
                case Phase.END:
                    reason = str(facts.pop("reason", ""))
                    self._log.end(self._pending.pop(str(facts.pop("of"))), reason=reason, facts=facts)
                case Phase.NOTE:
                    self._log.note(kind, tool=tool, arguments=line["arguments"], facts=facts)
