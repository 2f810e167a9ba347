"""Text on its way into a context: what is cut and what is escaped."""

from kifu.errors import ArgumentError

OBSERVATION_LIMIT_BYTES = 16_384


def clip_text(text: str | bytes, limit: int = OBSERVATION_LIMIT_BYTES) -> tuple[str, int]:
    r"""Bring what a tool returned into showable form.

    Bytes that are not UTF-8, and lone surrogates, appear as visible escapes (``\xff``). What is longer than ``limit``
    bytes of UTF-8 keeps its head and ends with a marker that says how many bytes are missing.

    Returns:
        The text, and the number of bytes left out (0 when all is there).
    """
    if limit < 0:
        raise ArgumentError(f"limit must be >= 0 bytes, found {limit}")
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="backslashreplace")
    data = text.encode("utf-8", errors="backslashreplace")
    if len(data) <= limit:
        return data.decode("utf-8"), 0
    end = limit
    while end > 0 and data[end] & 0xC0 == 0x80:
        end -= 1
    cut = len(data) - end
    return f"{data[:end].decode('utf-8')}\n[... {cut} bytes cut]", cut
