"""Untrusted text made harmless to show: nothing in it steers a terminal or reorders what stands beside it."""

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""General categories without a picture of their own: controls, bidi marks, zero-width characters, surrogates."""


def printable(text: str, *, keep: str = "\n") -> str:
    r"""Text in which every character that would act instead of showing is written out.

    Control characters below 32 become their pictures, others ``\u{...}``.

    Args:
        text: anything.
        keep: characters left as they are.

    >>> printable("red \x1b[31m and \u202egnp.exe")
    'red ␛[31m and \\u{202e}gnp.exe'
    """
    return "".join(char if char in keep else _shown(char) for char in text)


def _shown(char: str) -> str:
    code = ord(char)
    if code < 32:
        return chr(0x2400 + code)
    if code == 127:
        return "\u2421"
    return f"\\u{{{code:x}}}" if unicodedata.category(char) in _HIDDEN else char
