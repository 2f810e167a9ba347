"""A call that is not answered, and why; each dialect writes it in its own form."""

from kifu.errors import KifuError


class Refusal(KifuError):
    """A call the gateway does not answer; nothing of it is trainable.

    Args:
        message: where, what was found, what was expected, what to do.
        status: of HTTP.
        field: name of the field at fault.
        code: short name for programs.
    """

    def __init__(self, message: str, *, status: int = 400, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.code = code
