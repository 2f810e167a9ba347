"""How long work reports what it does."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the bytes done and the bytes in all (0 where unknown)."""


def silent(what: str, done_bytes: int, total_bytes: int) -> None:
    """Report nothing."""
