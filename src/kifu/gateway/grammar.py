"""Grammars of constrained answers: JSON Schema and forced tool calls, as masks over the tokenizer's own ids.

Axes: ``S`` allowed ids.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import llguidance
import llguidance.numpy as masks
import numpy as np

from kifu.errors import RenderError
from kifu.gateway.asked import Asked, Choosing
from kifu.gateway.refusal import Refusal
from kifu.policy import Constraint
from kifu.records import Ints, Json, as_ints
from kifu.render import ChatRenderer, ToolView
from kifu.render.dialects.hermes import CLOSE, OPEN

MAX_GRAMMAR_CHARS = 262_144
MAX_CALLS = 16
"""Calls of one turn that a grammar allows."""

_NOTHING = as_ints([])


class LlGuidance:
    """Implements `Constraint` with llguidance; reads tokens as they come and starts over for another prefix.

    Args:
        tokenizer: of the model, built once.
        grammar: in Lark form.
        name: digest.
        end_id: ends the turn once the grammar is satisfied.
    """

    def __init__(self, tokenizer: llguidance.LLTokenizer, grammar: str, *, name: str, end_id: int) -> None:
        self._matcher = llguidance.LLMatcher(tokenizer, grammar)
        if self._matcher.is_error():
            raise RenderError(f"the grammar cannot be used: {self._matcher.get_error()}")
        self._mask = masks.allocate_token_bitmask(1, tokenizer.vocab_size)
        self._read: tuple[int, ...] = ()
        self._end_id = end_id
        self.digest = name

    def allowed(self, prefix: tuple[int, ...]) -> Ints | None:
        """``[S]`` ids that may follow; empty when the turn is complete.

        Raises:
            RenderError: ``prefix`` breaks the grammar.
        """
        if prefix[: len(self._read)] != self._read:
            self._matcher.reset()
            self._read = ()
        if prefix and prefix[-1] == self._end_id:
            return _NOTHING
        for token in prefix[len(self._read) :]:
            if not self._matcher.consume_token(token) or self._matcher.is_error():
                self._matcher.reset()
                self._read = ()
                raise RenderError(f"id {token} breaks the grammar")
        self._read = prefix
        masks.fill_next_token_bitmask(self._matcher, self._mask, 0)
        bits = np.unpackbits(self._mask[0].view(np.uint8), bitorder="little")
        return as_ints(np.flatnonzero(bits))


class Grammars:
    """Makes the constraint of a call. Building one reads the whole vocabulary, so it is done before anybody calls.

    Args:
        renderer: of the model.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        habits = renderer.habits
        self._end_id = habits.end_id if habits.end_id is not None else renderer.stop_ids[0]
        self._tokenizer = llguidance.LLTokenizer(renderer.tokenizer.definition, eos_token=self._end_id)
        self._about = f"llguidance {version('llguidance')} {renderer.tokenizer.digest} {self._end_id}"

    def __call__(self, asked: Asked, renderer: ChatRenderer) -> Constraint | None:
        """The grammar a call asks for; None when it asks for none.

        Raises:
            Refusal: the form cannot be made into one.
        """
        must_call = asked.choosing is Choosing.REQUIRED
        if asked.form is None and not must_call:
            return None
        field = "tool_choice" if must_call else "response_format"
        if renderer.habits.opens_thinking:
            raise Refusal(f"{field}: this model thinks first, so its answer cannot be constrained", field=field)
        tools = [tool for tool in asked.tools if asked.only in (None, tool.name)]
        if must_call and renderer.dialect.name.startswith("command/"):
            return _listed(renderer, asked.tools, tools)
        try:
            return self._build(_lark(renderer.dialect.name, asked, tools if must_call else asked.tools))
        except (RenderError, ValueError) as error:
            raise Refusal(f"{field}: {error}", field=field, code="invalid_schema") from error

    def _build(self, grammar: str) -> Constraint:
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise RenderError(f"the schemas have {len(grammar)} characters, at most {MAX_GRAMMAR_CHARS} are read")
        wrong = llguidance.LLMatcher.validate_grammar(grammar, self._tokenizer)
        if wrong:
            raise RenderError(str(wrong)[:500])
        name = hashlib.sha256(f"{self._about}\n{grammar}".encode()).hexdigest()
        return LlGuidance(self._tokenizer, grammar, name=name, end_id=self._end_id)


def _listed(renderer: ChatRenderer, tools: Sequence[ToolView], chosen: Sequence[ToolView]) -> Constraint:
    """Commands are a finite list."""
    try:
        return renderer.constraint(tools, [tool.name for tool in chosen])
    except RenderError as error:
        raise Refusal(f"tool_choice: {error}", field="tool_choice", code="unsupported_value") from error


def _lark(dialect: str, asked: Asked, tools: Sequence[ToolView]) -> str:
    """A grammar in Lark form: the schema, calls of the tools, or either."""
    rules: list[str] = []
    starts: list[str] = []
    if asked.form is not None and asked.choosing is not Choosing.REQUIRED:
        schema: Mapping[str, Json] = {"type": "object"} if asked.form.schema is None else asked.form.schema
        rules.append(f"answer: %json {json.dumps(schema, default=dict)}")
        starts.append("answer")
    if tools and asked.choosing is not Choosing.NONE:
        rules += _call_rules(dialect, tools)
        many = asked.parallel and dialect.startswith("hermes/")
        starts.append(f'call ("\\n" call){{0,{MAX_CALLS - 1}}}' if many else "call")
    return "\n".join([f"start: {' | '.join(starts)}", *rules])


def _call_rules(dialect: str, tools: Sequence[ToolView]) -> list[str]:
    before, between, after = ('{"tool": ', ', "arguments": ', "}")
    if dialect.startswith("hermes/"):
        before, between, after = (f'{OPEN}\n{{"name": ', ', "arguments": ', f"}}\n{CLOSE}")
    rules = [f"call: {' | '.join(f'call{at}' for at in range(len(tools)))}"]
    for at, tool in enumerate(tools):
        head = json.dumps(before + json.dumps(tool.name, ensure_ascii=False) + between, ensure_ascii=False)
        schema = json.dumps({"type": "object", **dict(tool.parameters)}, default=dict)
        rules.append(f"call{at}: {head} args{at} {json.dumps(after)}\nargs{at}: %json {schema}")
    return rules
