"""The context of a call: the record's own ids as far as it goes on from them, the rest rendered.

Axes: ``N`` tokens of a turn.
"""

from kifu.errors import RenderError
from kifu.gateway.asked import Asked
from kifu.gateway.capture import Capture, Found
from kifu.gateway.placing import Laid, as_message, in_call_order, lay_after, lay_fresh, without_stop
from kifu.gateway.said import Said
from kifu.records import Ints, Origin, as_ints
from kifu.render import ChatRenderer, Message, Piece


def lay_call(
    capture: Capture, asked: Asked, *, found: Found, renderer: ChatRenderer
) -> tuple[tuple[Said, ...], tuple[Message, ...], Laid]:
    """The context of a conversation, with the messages that were laid, as said and as rendered.

    Raises:
        RenderError: the conversation cannot be turned into tokens.
    """
    tools, parent = asked.tools, found.parent
    if parent is not None:
        news = in_call_order(asked.messages[found.matched :], parent.choice.said.calls)
        messages, known = _rendered(capture, news, asked=asked, renderer=renderer)
        try:
            laid = lay_after(renderer, parent.context, history=parent.messages, news=messages, tools=tools, known=known)
        except RenderError:
            laid = None  # the template cannot go on from there; the whole conversation may still be laid
        if laid is not None and laid.shared:
            return news, messages, laid
    messages, known = _rendered(capture, asked.messages, asked=asked, renderer=renderer)
    return asked.messages, messages, lay_fresh(renderer, messages, tools=tools, known=known)


def lay_bare(capture: Capture, prompt: str | Ints, *, renderer: ChatRenderer) -> tuple[Found, Laid]:
    """A prompt without a template: ids as they are, text as the model's tokenizer writes it."""
    tokenizer = renderer.tokenizer
    found = capture.find_bare(prompt, renderer.stop_ids)
    if found is None:
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        pieces = (Piece(origin=Origin.PROMPT, token_ids=ids),) if ids.size else ()
        return Found(), Laid(pieces=pieces, shared=0, token_ids=ids)
    node, shared, rest = found
    more = tokenizer.encode(rest) if isinstance(prompt, str) else as_ints(prompt[shared:])
    pieces = (Piece(origin=Origin.CONTROLLER, token_ids=more),) if more.size else ()
    ids = as_ints([*node.context[:shared].tolist(), *more.tolist()])
    return Found(parent=node), Laid(pieces=pieces, shared=shared, token_ids=ids)


def _rendered(
    capture: Capture, news: tuple[Said, ...], *, asked: Asked, renderer: ChatRenderer
) -> tuple[tuple[Message, ...], dict[int, Ints]]:
    """Messages for the renderer; what the policy wrote keeps its text and its ids."""
    messages: list[Message] = []
    known: dict[int, Ints] = {}
    for at, said in enumerate(news):
        node = capture.spoken(said)
        if node is None:
            messages.append(as_message(said, renderer=renderer, tools=asked.tools))
        else:
            messages.append(node.choice.message)
            known[at] = without_stop(node.choice.generation.token_ids, renderer.stop_ids)
    return tuple(messages), known
