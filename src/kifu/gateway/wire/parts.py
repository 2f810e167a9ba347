"""Content that may be a string or a list of parts."""

from collections.abc import Mapping, Sequence
from typing import Any

from kifu.gateway.refusal import Refusal


def joined_text(content: str | Sequence[Mapping[str, Any]] | None, *, where: str, kinds: tuple[str, ...]) -> str:
    """Text of a content, its parts joined.

    Args:
        content: as sent.
        where: path of the field, for messages.
        kinds: types of parts that hold text.

    Raises:
        Refusal: a part that is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for at, part in enumerate(content):
        kind, text = part.get("type"), part.get("text")
        if kind not in kinds:
            raise Refusal(
                f"{where}.{at}.type: found {str(kind)[:40]!r}; the policy reads text only ({', '.join(kinds)})",
                field=f"{where}.{at}.type",
                code="unsupported_content",
            )
        if not isinstance(text, str):
            raise Refusal(f"{where}.{at}.text: expected a string", field=f"{where}.{at}.text", code="invalid_value")
        texts.append(text)
    return "".join(texts)
