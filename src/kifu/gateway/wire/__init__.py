"""The four dialects of HTTP: how a body becomes a call, and a call an answer, a stream or an error."""

from kifu.gateway.wire.contract import Dialect, Event
from kifu.gateway.wire.registry import DIALECTS

__all__ = ["DIALECTS", "Dialect", "Event"]
