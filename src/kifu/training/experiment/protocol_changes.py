"""What differs between the protocol a run was frozen with and the one it would have here."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kifu.monitor import leaves

_TOLD = 5
"""Fields that are named at most."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST = 60


def changed_fields(frozen: Path, tables: Mapping[str, Any]) -> list[str]:
    """Each field with what it is and what it was; none where the frozen file cannot be read.

    Args:
        frozen: ``protocol.toml`` of the run.
        tables: the protocol here, without absent values.
    """
    try:
        before = dict(leaves(tomllib.loads(frozen.read_text(encoding="utf-8"))))
    except (OSError, ValueError):
        return []
    now = dict(leaves(tables))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    told = [f"{name} is {_short(now.get(name, 'absent'))}, was {_short(before.get(name, 'absent'))}" for name in names]
    return told if len(told) <= _TOLD else [*told[:_TOLD], f"and {len(told) - _TOLD} more"]


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if _DIGEST.fullmatch(text) else text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
