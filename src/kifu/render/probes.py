"""What a chat template does, found out by rendering small conversations instead of by the model's name."""

from dataclasses import dataclass

from kifu.errors import RenderError
from kifu.records import Origin
from kifu.render.contract import ToolView
from kifu.render.dialects import Dialect
from kifu.render.dialects.hermes import CLOSE, OPEN
from kifu.render.layout import Entry, Layout, ReasoningForm, content_slot, lay_out, reasoning_slot
from kifu.render.template import ChatTemplate
from kifu.render.thinking import OPEN as THINK
from kifu.render.tokenizer import ChatTokenizer, Chunk, Level

_TOOL = ToolView(
    name="kifuprobe",
    description="d",
    parameters={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a template treats a conversation."""

    has_system_role: bool
    has_tool_role: bool
    """Tool results are shown in a role of their own; only used where the template also describes tools."""
    describes_tools: bool
    """The template writes the tools into the prompt itself, in the dialect's form."""
    reasoning_form: ReasoningForm
    opens_thinking: bool
    """The generation prompt ends inside a thinking block."""
    end_id: int | None
    """Control token that ends a turn; None where the next role marker does."""
    header_size: int
    """Tokens of the generation prompt."""
    continues: bool = True
    """A prompt stays the beginning of the conversation when turns are appended; without that only one turn is exact."""


def probe(template: ChatTemplate, tokenizer: ChatTokenizer, dialect: Dialect) -> Habits:
    """Find a template's habits.

    Raises:
        RenderError: it does not show user and assistant messages, or its turns end with plain text or never.
    """
    asked = [_entry("user")]
    answered = [*asked, _entry("assistant")]
    prompt, fresh = _layout(template, asked), _layout(template, asked, generation_prompt=False)
    same = next(
        (at for at, (one, other) in enumerate(zip(prompt.text, fresh.text, strict=False)) if one != other), None
    )
    shared = prompt.text[: len(fresh.text) if same is None else same]
    if content_slot(0) not in shared:
        raise RenderError("the chat template's generation prompt does not follow the conversation it continues")
    header = prompt.text[len(shared) :]
    describes = _describes(template, asked, dialect)
    if describes and not _same_tail(template, answered):
        raise RenderError("the chat template shows a turn differently when there are tools; it cannot be continued")
    return Habits(
        has_system_role=_accepts(template, [_entry("system"), *asked]),
        has_tool_role=describes and _accepts(template, [*answered, _entry("tool"), _entry("tool")]),
        describes_tools=describes,
        reasoning_form=_reasoning_form(template),
        opens_thinking=header.rstrip().endswith(THINK),
        end_id=_end_id(template, tokenizer, answered),
        header_size=int(tokenizer.encode(header, Level.TEMPLATE).size),
        continues=_continues(template, shared),
    )


def _continues(template: ChatTemplate, prompt: str) -> bool:
    """Whether what stands before the first turn is left alone when an answer and a second turn follow it."""
    try:
        longer = _layout(template, [_entry("user"), _entry("assistant"), _entry("user"), _entry("assistant")])
    except RenderError:  # it refuses such a conversation, so none goes on under it
        return False
    return longer.text.startswith(prompt)


def _entry(role: str) -> Entry:
    return Entry(role=role, content=Chunk(origin=Origin.PROMPT, text="x"))


def _layout(template: ChatTemplate, entries: list[Entry], *, generation_prompt: bool = True) -> Layout:
    return lay_out(template, entries, generation_prompt=generation_prompt)


def _accepts(template: ChatTemplate, entries: list[Entry]) -> bool:
    try:
        _layout(template, entries)
    except RenderError:
        return False
    return True


def _describes(template: ChatTemplate, asked: list[Entry], dialect: Dialect) -> bool:
    """Whether the template teaches the form of calls this dialect reads."""
    if not dialect.name.startswith("hermes/"):
        return False
    try:
        found = lay_out(template, asked, tools=[_TOOL], generation_prompt=True)
    except RenderError:
        return False
    return all(part in found.text for part in (_TOOL.name, OPEN, CLOSE, '"arguments"'))


def _same_tail(template: ChatTemplate, answered: list[Entry]) -> bool:
    entries = [*answered, _entry("user")]
    with_tools = lay_out(template, entries, tools=[_TOOL], generation_prompt=True)
    without = lay_out(template, entries, generation_prompt=True)
    slot = content_slot(len(answered) - 1)
    return with_tools.text[with_tools.at(slot) :] == without.text[without.at(slot) :]


def _reasoning_form(template: ChatTemplate) -> ReasoningForm:
    thought = Entry(
        role="assistant",
        content=Chunk(origin=Origin.PROMPT, text="x"),
        reasoning=Chunk(origin=Origin.PROMPT, text="y"),
    )
    try:
        shown = lay_out(template, [_entry("user"), thought], generation_prompt=False)
    except RenderError:
        return "inline"
    return "field" if reasoning_slot(1) in shown.text else "inline"


def _end_id(template: ChatTemplate, tokenizer: ChatTokenizer, answered: list[Entry]) -> int | None:
    """The control token right after an assistant's text, where the text is followed by nothing else."""
    slot = content_slot(len(answered) - 1)
    closed = _layout(template, answered, generation_prompt=False).after(slot)
    going_on = _layout(template, [*answered, _entry("user")]).after(slot)
    end = [int(token) for piece in tokenizer.encode_chunks(closed[:1]) for token in piece.token_ids]
    tail = [int(token) for piece in tokenizer.encode_chunks(going_on[:1]) for token in piece.token_ids]
    if not tail or tail[0] not in tokenizer.control_ids:
        raise RenderError(
            "the chat template ends an assistant's turn with plain text, so where the next turn begins depends on what "
            "was sampled. Use a model whose turns end with a control token."
        )
    if end and end[0] == tail[0]:
        return tail[0]
    if not tokenizer.stop_ids:
        raise RenderError(
            "neither the chat template nor the model's files say which token ends a turn. Name it: eos_token in "
            "tokenizer_config.json, or eos_token_id in generation_config.json."
        )
    return None
