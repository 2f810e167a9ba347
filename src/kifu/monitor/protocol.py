"""The frozen protocol as a run folder holds it: its six tables, field by field."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from kifu.errors import AlteredError

Tables: TypeAlias = Mapping[str, Mapping[str, Any]]


def read_protocol(path: Path) -> Tables:
    """The tables of ``protocol.toml``; empty where the file is missing.

    Raises:
        AlteredError: it is no TOML.
    """
    if not path.exists():
        return {}
    try:
        found: dict[str, dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise AlteredError(f"{path}: not TOML ({cause}); it is written once, so something else changed it") from cause
    return found


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 (a TOML tree)
    """Every field of nested tables by its dotted name; a list is one field."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from leaves(item, f"{path}.{key}" if path else key)
