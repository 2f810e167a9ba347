"""Conversations of language models: fresh ones from the chat template, later ones by appending to exact ids."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from kifu.errors import RenderError
from kifu.policy import Constraint
from kifu.records import Ints, Origin, ToolCall, as_ints
from kifu.render.contract import Digests, Extension, Message, Parsed, Piece, ToolView
from kifu.render.conversation import Conversation, splice
from kifu.render.dialects import Dialect, join_calls
from kifu.render.grammar import call_grammar
from kifu.render.layout import Entry, Layout, content_slot, lay_out, reasoning_slot
from kifu.render.probes import Habits, probe
from kifu.render.template import ChatTemplate, load_template
from kifu.render.thinking import split_reasoning
from kifu.render.tokenizer import ChatTokenizer, Chunk, Level, load_tokenizer

_CACHE = 64


@dataclass(frozen=True, kw_only=True)
class ChatRenderer:
    """Implements `Renderer` for one model folder and one dialect. Build it with `load_renderer`."""

    tokenizer: ChatTokenizer
    template: ChatTemplate
    dialect: Dialect
    habits: Habits
    history: Literal["template", "append"] = "template"
    """What happens where the template would rewrite earlier turns (thinking stripped): fork as it says, or append."""
    _grammars: dict[str, Constraint] = field(default_factory=dict, repr=False, compare=False)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn: of the generation config, the tokenizer and the template."""
        end = () if self.habits.end_id is None else (self.habits.end_id,)
        return tuple(sorted({*self.tokenizer.stop_ids, *end}))

    @property
    def digests(self) -> Digests:
        """Digests of tokenizer and template; name and version of the dialect and of the history rule."""
        return Digests(
            tokenizer=self.tokenizer.digest,
            template=self.template.digest,
            parser=self.dialect.name,
            extra=MappingProxyType({"history": f"{self.history}/1"}),
        )

    def start(self, messages: Sequence[Message], tools: Sequence[ToolView]) -> tuple[Piece, ...]:
        """Tokens of a fresh conversation, generation prompt included.

        Where no content spells a control token the ids equal those of the whole rendered string.
        """
        entries = self._conversation(policy=Origin.PROMPT, observed=Origin.PROMPT).entries(messages, tools)
        chunks = self._lay_out(entries, tools).chunks
        pieces = self.tokenizer.encode_chunks(chunks)
        _check_whole(self.tokenizer, chunks, pieces)
        return pieces

    def extend(
        self,
        token_ids: Ints,
        history: Sequence[Message],
        results: Sequence[str],
        *,
        ended: bool,
        tools: Sequence[ToolView] = (),
    ) -> Extension:
        """Tokens that show ``results`` after the policy's last turn; its sampled ids are never encoded again.

        Whether the turn ended is read from its last id as well: an end-of-turn token that is not there is put in as
        FRAMEWORK, also when a turn ended by a stop string or with another model-specific stop token.

        Raises:
            RenderError: the last message is not the policy's, or the template's boundary is not exact.
        """
        return self.follow(token_ids, history, [Message(role="tool", content=text) for text in results], tools=tools)

    def follow(
        self,
        token_ids: Ints,
        history: Sequence[Message],
        news: Sequence[Message],
        *,
        tools: Sequence[ToolView] = (),
        known: Mapping[int, Ints] = MappingProxyType({}),
    ) -> Extension:
        """Tokens that show any messages after the policy's last turn; `extend` is the case of tool results.

        Assistant text among ``news`` is CONTROLLER, results of tools are ENVIRONMENT, the rest is PROMPT.

        Args:
            token_ids: the whole context, the policy's last turn included.
            history: the conversation so far, the policy's last turn as its last message.
            news: what follows it.
            tools: those the conversation was started with.
            known: ids, without a stop token, in place of the text of some messages of ``news``, by index.

        Raises:
            RenderError: the last message is not the policy's, or the template's boundary is not exact.
        """
        if not history or history[-1].role != "assistant":
            raise RenderError("the conversation must end with the policy's turn before results can be shown")
        conversation = self._conversation(policy=Origin.CONTROLLER, observed=Origin.ENVIRONMENT)
        entries = conversation.entries([*history, *news], tools)
        turns = [index for index, entry in enumerate(entries) if entry.role == "assistant"]
        last = turns[sum(message.role == "assistant" for message in history) - 1]
        _put_in(entries, _by_turn(news, known, turns=turns[turns.index(last) + 1 :]))
        entries[last] = replace(entries[last], content=_opaque(entries[last].content))
        after = self._lay_out(entries, tools)
        if self.history == "append" or _appends(self._lay_out(entries[:last], tools), after, entries[last], last=last):
            return self._append(token_ids, after.news(content_slot(last)))
        return self._fork(token_ids, entries, last=last, tools=tools)

    def resume(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolView],
        *,
        known: Mapping[int, Ints] = MappingProxyType({}),
    ) -> tuple[Piece, ...]:
        """Tokens of a conversation that somebody else led so far, generation prompt included.

        As `start`, but its assistant text is CONTROLLER and its results of tools are ENVIRONMENT.

        Args:
            messages: the conversation.
            tools: what can be called.
            known: ids, without a stop token, in place of the text of some assistant messages, by index.
        """
        entries = self._conversation(policy=Origin.CONTROLLER, observed=Origin.ENVIRONMENT).entries(messages, tools)
        turns = [index for index, entry in enumerate(entries) if entry.role == "assistant"]
        _put_in(entries, _by_turn(messages, known, turns=turns))
        chunks = self._lay_out(entries, tools).chunks
        pieces = self.tokenizer.encode_chunks(chunks)
        if not known:
            _check_whole(self.tokenizer, chunks, pieces)
        return pieces

    def parse(self, token_ids: Ints, tools: Sequence[ToolView]) -> Parsed:
        """Read a turn's ids: the end token is dropped, thinking set apart, the rest read by the dialect."""
        ids = [int(token) for token in token_ids]
        while ids and ids[-1] in self.stop_ids:
            ids.pop()
        return self.parse_text(self.tokenizer.decode(ids), tools)

    def parse_text(self, text: str, tools: Sequence[ToolView]) -> Parsed:
        """Read a turn's text, without its end token: thinking set apart, the rest read by the dialect."""
        reasoning, content = split_reasoning(text, opened=self.habits.opens_thinking)
        if reasoning is not None and content is None:
            why = "the turn ended before its thinking was closed by </think>."
            return Parsed(text=text, error=why, reasoning=reasoning)
        found = self.dialect.parse(content or "", tools)
        return replace(found, text=text, reasoning=reasoning)

    def constraint(self, tools: Sequence[ToolView], allowed: Sequence[str] | None) -> Constraint:
        """Grammar of the texts that are one call of an allowed tool, with the end-of-turn token.

        Raises:
            RenderError: a parameter is none a grammar can spell, there are too many calls, no tool is allowed.
        """
        chosen = [tool for tool in tools if allowed is None or tool.name in allowed]
        key = json.dumps([[tool.name, tool.command, dict(tool.parameters)] for tool in chosen], default=dict)
        if key not in self._grammars:
            if len(self._grammars) >= _CACHE:
                self._grammars.pop(next(iter(self._grammars)))
            self._grammars[key] = call_grammar(self.dialect, chosen, self.tokenizer, end_id=self._end)
        return self._grammars[key]

    def compose(self, calls: Sequence[ToolCall], tools: Sequence[ToolView]) -> Ints:
        """Ids of a turn that makes ``calls`` in the canonical encoding, end-of-turn token included."""
        text = join_calls(self.dialect, "", calls=calls, tools=tools)
        return as_ints([*self.tokenizer.encode(text, Level.AUTHOR).tolist(), self._end])

    @property
    def _end(self) -> int:
        return self.habits.end_id if self.habits.end_id is not None else self.stop_ids[0]

    def _conversation(self, *, policy: Origin, observed: Origin) -> Conversation:
        return Conversation(
            habits=self.habits, dialect=self.dialect, policy=policy, observed=observed, guard=_guard_of(self.tokenizer)
        )

    def _lay_out(self, entries: Sequence[Entry], tools: Sequence[ToolView]) -> Layout:
        return lay_out(
            self.template,
            entries,
            tools=tools if self.habits.describes_tools else (),
            form=self.habits.reasoning_form,
            generation_prompt=True,
            guard=_guard_of(self.tokenizer),
        )

    def _append(self, token_ids: Ints, tail: Sequence[Chunk]) -> Extension:
        pieces = list(self.tokenizer.encode_chunks(tail))
        if not pieces or int(pieces[0].token_ids[0]) not in self.tokenizer.control_ids:
            raise RenderError(
                "the template ends a turn with plain text, so the ids after it depend on what was sampled. "
                "Such a template cannot be continued exactly; use a model whose turns end with a control token."
            )
        first = int(pieces[0].token_ids[0])
        sampled = int(token_ids[-1]) if token_ids.size else -1
        rest = as_ints(pieces[0].token_ids[1:])
        head = [Piece(origin=pieces[0].origin, token_ids=rest)] if rest.size else []
        if sampled == first:
            return Extension(pieces=(*head, *pieces[1:]))
        if first == self.habits.end_id:
            put_in = Piece(origin=Origin.FRAMEWORK, token_ids=as_ints([first]))
            return Extension(pieces=(put_in, *head, *pieces[1:]))
        if sampled in self.stop_ids:
            return Extension(pieces=tuple(pieces), fork_at=int(token_ids.size) - 1)
        return Extension(pieces=tuple(pieces))

    def _fork(self, token_ids: Ints, entries: Sequence[Entry], *, last: int, tools: Sequence[ToolView]) -> Extension:
        """The whole next context as the template says, keeping the ids of turns whose text it keeps."""
        kept = splice(self.tokenizer, token_ids, entries[: last + 1], stop_ids=self.stop_ids)
        pieces = self.tokenizer.encode_chunks(self._lay_out([*kept, *entries[last + 1 :]], tools).chunks)
        ids = np.concatenate([piece.token_ids for piece in pieces])
        size = min(ids.size, token_ids.size)
        differs = np.flatnonzero(ids[:size] != token_ids[:size])
        shared = int(differs[0]) if differs.size else int(size)
        first = next(index for index, entry in enumerate(entries) if entry.role == "assistant")
        prompt = self.tokenizer.encode_chunks(self._lay_out(entries[:first], tools).chunks)
        if shared < sum(piece.token_ids.size for piece in prompt) - self.habits.header_size:
            raise RenderError(
                "the history or the tools are not those the conversation was started with; "
                f"only {shared} of {token_ids.size} ids are shared. Give `extend` the same system text and tools."
            )
        return Extension(pieces=_drop(pieces, shared), fork_at=shared)


def load_renderer(
    folder: Path,
    *,
    dialect: Dialect,
    thinking: bool | None = None,
    history: Literal["template", "append"] = "template",
    options: Mapping[str, bool | str] = MappingProxyType({}),
) -> ChatRenderer:
    """Make the renderer of a model folder.

    Args:
        folder: holds tokenizer.json, tokenizer_config.json, perhaps chat_template.jinja and generation_config.json.
        dialect: how tools are called.
        thinking: given to the template as ``enable_thinking``; None leaves its default.
        history: what happens where the template rewrites earlier turns.
        options: further variables of the template.

    Raises:
        RenderError: no chat template, a tokenizer that loses text, a template without exact boundaries.
    """
    asked = {**options} if thinking is None else {**options, "enable_thinking": thinking}
    try:
        tokenizer = load_tokenizer(folder)
        template = load_template(folder, variables=tokenizer.variables, options=asked)
        habits = probe(template, tokenizer, dialect)
    except RenderError as cause:
        if str(folder) in str(cause):
            raise
        raise RenderError(f"model at `{folder}`: {cause}") from cause
    return ChatRenderer(tokenizer=tokenizer, template=template, dialect=dialect, habits=habits, history=history)


def _check_whole(tokenizer: ChatTokenizer, chunks: Sequence[Chunk], pieces: Sequence[Piece]) -> None:
    if any(chunk.level is not Level.TEMPLATE and tokenizer.spells_added(chunk.text) for chunk in chunks):
        return
    text = "".join(chunk.text for chunk in chunks)
    ids = np.concatenate([piece.token_ids for piece in pieces]) if pieces else as_ints([])
    whole = tokenizer.encode_whole(text)
    if not np.array_equal(ids, whole) and tokenizer.decode(whole) == text:
        raise RenderError(
            "the pieces of the prompt encode differently from the whole string; this model's tokenizer "
            "cannot be used with exact origins"
        )


def _guard_of(tokenizer: ChatTokenizer) -> tuple[str, ...]:
    return tuple(token.content for token in tokenizer.added)


def _appends(before: Layout, after: Layout, turn: Entry, *, last: int) -> bool:
    """Whether the template leaves everything before the end of the last turn as it was.

    Args:
        before: the prompt of the last turn.
        after: the prompt of the next turn.
        turn: the last turn.
        last: its index among the messages.
    """
    if not after.text.startswith(before.text):
        return False
    gap = after.text[len(before.text) : after.at(content_slot(last))]
    return reasoning_slot(last) in gap if turn.reasoning is not None else not gap


def _by_turn(messages: Sequence[Message], known: Mapping[int, Ints], *, turns: Sequence[int]) -> dict[int, Ints]:
    """From the index among ``messages`` to the index among entries; thinking is laid out by the template."""
    spoken = [index for index, message in enumerate(messages) if message.role == "assistant"]
    return {
        entry: known[index]
        for index, entry in zip(spoken, turns, strict=True)
        if index in known and messages[index].reasoning is None
    }


def _put_in(entries: list[Entry], known: Mapping[int, Ints]) -> None:
    """Give entries their ids."""
    for index, ids in known.items():
        if ids.size:
            content = replace(entries[index].content, token_ids=tuple(ids.tolist()))
            entries[index] = replace(entries[index], content=content)


def _opaque(chunk: Chunk) -> Chunk:
    """A content the template certainly shows, whatever the policy wrote."""
    return chunk if chunk.text.strip() == chunk.text and chunk.text else replace(chunk, text=chunk.text.strip() or "x")


def _drop(pieces: Sequence[Piece], count: int) -> tuple[Piece, ...]:
    found = []
    for piece in pieces:
        kept = piece.token_ids[count:]
        count = max(count - piece.token_ids.size, 0)
        if kept.size:
            found.append(Piece(origin=piece.origin, token_ids=as_ints(kept)))
    return tuple(found)
