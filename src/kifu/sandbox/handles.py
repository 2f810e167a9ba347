"""Descriptors of this process that are closed together, whatever happens on the way."""

import os
from types import TracebackType
from typing import Self


class Handles:
    """Closes at the end of its block what it still holds: where descriptors run out, none may be left behind."""

    def __init__(self) -> None:
        self._held: set[int] = set()

    def own(self, handle: int) -> int:
        """Hold a descriptor; gives it."""
        self._held.add(handle)
        return handle

    def pipe(self) -> tuple[int, int]:
        """Make a pipe and hold both of its ends."""
        read, write = os.pipe()
        return self.own(read), self.own(write)

    def let_go(self, *handles: int) -> None:
        """Somebody else closes them."""
        self._held.difference_update(handles)

    def shut(self, *handles: int) -> None:
        """Close some of them now."""
        self.let_go(*handles)
        for handle in handles:
            os.close(handle)

    def close(self) -> None:
        """Close what it holds; closing twice is fine."""
        while self._held:
            os.close(self._held.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
