"""Observation text made safe to show: valid Unicode, bounded size, nothing dropped without a mark."""

LIMIT_BYTES = 16 * 1024


def visible(text: str | bytes) -> str:
    r"""Text as valid Unicode: bytes that are not UTF-8 and lone surrogates become ``\xNN`` and ``\udcNN``.

    >>> visible(b"caf\xe9 ok")
    'caf\\xe9 ok'
    """
    if isinstance(text, bytes):
        return text.decode("utf-8", "backslashreplace")
    return text.encode("utf-8", "backslashreplace").decode()


def clip(text: str, *, limit_bytes: int = LIMIT_BYTES) -> tuple[str, int]:
    """Cut ``text`` to ``limit_bytes`` of UTF-8, its marker included, at a character's edge.

    Returns:
        The text and the number of bytes left out; 0 when it fits.
    """
    data = text.encode()
    if len(data) <= limit_bytes:
        return text, 0
    room = limit_bytes - len(_marker(len(data)).encode())
    kept = data[: max(room, 0)].decode("utf-8", "ignore")
    cut = len(data) - len(kept.encode())
    return kept + _marker(cut), cut


def _marker(cut: int) -> str:
    return f"\n[cut: {cut} bytes]"
