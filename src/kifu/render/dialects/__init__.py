"""Tool-call dialects: how tools are described, calls written, calls read. ``DIALECTS`` is the whole list."""

from collections.abc import Mapping
from types import MappingProxyType

from kifu.errors import UsageError, nearest
from kifu.render.dialects.base import Dialect, join_calls
from kifu.render.dialects.command import Command
from kifu.render.dialects.hermes import Hermes
from kifu.render.dialects.jsoncall import JsonCall

DIALECTS: Mapping[str, Dialect] = MappingProxyType({"command": Command(), "json": JsonCall(), "hermes": Hermes()})


def dialect(name: str) -> Dialect:
    """Find a dialect by its name, with or without its version.

    Raises:
        UsageError: there is none of this name, or not in this version.
    """
    found = DIALECTS.get(name.partition("/")[0])
    if found is None or name not in (found.name, found.name.partition("/")[0]):
        raise UsageError(f"no dialect `{name}`; {nearest(name, [item.name for item in DIALECTS.values()])}")
    return found


__all__ = ["DIALECTS", "Command", "Dialect", "Hermes", "JsonCall", "dialect", "join_calls"]
