"""Telling a model's thinking from its answer."""

OPEN, CLOSE = "<think>", "</think>"


def split_reasoning(text: str, *, opened: bool = False) -> tuple[str | None, str | None]:
    """Split a turn into its thinking and the rest.

    Args:
        text: of the turn.
        opened: the generation prompt already opened the block, so the turn begins inside it.

    Returns:
        Thinking and rest. Thinking is None where there is no block; the rest is None where the block is not closed.
    """
    body = text.lstrip()
    starts = body.startswith(OPEN)
    if not starts and not (opened and CLOSE in text):
        return (text.strip("\n"), None) if opened and CLOSE not in text and body else (None, text)
    inside = body.removeprefix(OPEN) if starts else text
    reasoning, closed, rest = inside.partition(CLOSE)
    return reasoning.strip("\n"), rest.lstrip("\n") if closed else None
