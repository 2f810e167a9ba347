"""Every dialect by its name."""

from collections.abc import Mapping
from types import MappingProxyType

from kifu.gateway.asked import Api
from kifu.gateway.wire.chat import Chat
from kifu.gateway.wire.completions import Completions
from kifu.gateway.wire.contract import Dialect
from kifu.gateway.wire.messages import Messages
from kifu.gateway.wire.responses import Responses

DIALECTS: Mapping[Api, Dialect] = MappingProxyType(
    {"chat": Chat(), "completions": Completions(), "responses": Responses(), "messages": Messages()}
)
