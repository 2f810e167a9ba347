"""Messages to tokens with origins, turns to actions: chat templates, tool-call dialects, grammars, symbols."""

from kifu.render.chat import ChatRenderer, load_renderer
from kifu.render.contract import Digests, Extension, Message, Parsed, Piece, Renderer, ToolView
from kifu.render.dialects import DIALECTS, Command, Dialect, Hermes, JsonCall, dialect
from kifu.render.grammar import TokenTrie, call_grammar, call_texts
from kifu.render.semantic import action_key, tokenizations
from kifu.render.spelling import CallGrammar
from kifu.render.symbols import ActionSet, SymbolRenderer
from kifu.render.template import ChatTemplate, load_template
from kifu.render.text import OBSERVATION_LIMIT_BYTES, clip_text
from kifu.render.tokenizer import ChatTokenizer, Chunk, Level, load_tokenizer
from kifu.render.trust import TRUST_MARKS, TrustForm, least_trust, with_trust

__all__ = [
    "DIALECTS",
    "OBSERVATION_LIMIT_BYTES",
    "TRUST_MARKS",
    "ActionSet",
    "CallGrammar",
    "ChatRenderer",
    "ChatTemplate",
    "ChatTokenizer",
    "Chunk",
    "Command",
    "Dialect",
    "Digests",
    "Extension",
    "Hermes",
    "JsonCall",
    "Level",
    "Message",
    "Parsed",
    "Piece",
    "Renderer",
    "SymbolRenderer",
    "TokenTrie",
    "ToolView",
    "TrustForm",
    "action_key",
    "call_grammar",
    "call_texts",
    "clip_text",
    "dialect",
    "least_trust",
    "load_renderer",
    "load_template",
    "load_tokenizer",
    "tokenizations",
    "with_trust",
]
