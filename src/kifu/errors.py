"""The exception tree. Every error says where, what was found, what was expected and what to do.

KifuError
├── UsageError              a call or command that cannot be meant
│   ├── ExperimentError     the experiment file: a field missing, contradictory or unknown
│   └── ArgumentError       a number or array outside the domain of a formula; also a ValueError
├── RecordError             a record whose invariants do not hold; also a ValueError
├── LedgerError             double entry does not close; the run stops
├── StorageError            the run folder, its parts, its log
│   ├── DiskFullError       no space left; nothing already accepted is lost
│   ├── LockedError         another process owns the run folder
│   ├── AlteredError        bytes that differ from what the manifest promises; a torn tail is no error, it is taken off
│   └── FormatError         a format version this reader does not know
├── ModelError              a model that cannot be fetched, converted, loaded or trusted
├── RenderError             a conversation that cannot be turned into tokens exactly
├── NoSignalError           several steps in a row without an informative group
├── FailureRateError        the environment fails more often than the experiment allows
├── InterruptedRun          stopped by its user; everything accepted is kept and `kifu resume` goes on
└── BoundaryError           a failure attributed to the room that was called
    ├── EnvironmentFailure  reset or step raised, hung or returned nonsense
    ├── ToolFailure         the tool service broke (a tool's own failure is an observation)
    ├── VerifierFailure     verify raised, hung or returned nonsense; never a reward of 0
    ├── EngineFailure       sampling, scoring or training failed
    ├── SandboxFailure      the sandbox broke
    └── AgentFailure        the agent strategy raised
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class KifuError(Exception):
    """Root of every error this library raises on purpose. Its message quotes no input at any length."""

    exit_code = 1

    def __str__(self) -> str:
        return shortened(super().__str__())


class UsageError(KifuError):
    """A call or command that cannot be meant."""

    exit_code = 2


class ExperimentError(UsageError):
    """The experiment file is malformed, incomplete or contradictory."""


class ArgumentError(UsageError, ValueError):
    """A number or array outside the domain of a formula."""


class RecordError(KifuError, ValueError):
    """A record whose invariants do not hold."""


class LedgerError(KifuError):
    """Double entry does not close."""


class StorageError(KifuError):
    """The run folder, its parts or its log."""

    exit_code = 4


class DiskFullError(StorageError):
    """No space left on the device."""


class LockedError(StorageError):
    """Another process owns the run folder."""


class AlteredError(StorageError):
    """Bytes that differ from what the manifest promises."""


class FormatError(StorageError):
    """A format version this reader does not know."""


class ModelError(KifuError):
    """A model that cannot be fetched, converted, loaded or trusted."""

    exit_code = 5


class RenderError(KifuError):
    """A conversation that cannot be turned into tokens exactly."""

    exit_code = 5


class NoSignalError(KifuError):
    """Several steps in a row without an informative group."""


class FailureRateError(KifuError):
    """The environment fails more often than the experiment allows."""

    exit_code = 3


class InterruptedRun(KifuError):
    """Stopped by its user; everything accepted is kept."""

    exit_code = 130


class BoundaryError(KifuError):
    """A failure attributed to the room that was called."""


class EnvironmentFailure(BoundaryError):
    """Reset or step raised, hung or returned nonsense."""

    exit_code = 3


class ToolFailure(BoundaryError):
    """The tool service broke; a tool's own failure is an observation instead."""

    exit_code = 3


class VerifierFailure(BoundaryError):
    """Verify raised, hung or returned nonsense; never a reward of 0."""

    exit_code = 3


class EngineFailure(BoundaryError):
    """Sampling, scoring or training failed."""

    exit_code = 5


class SandboxFailure(BoundaryError):
    """The sandbox broke."""


class AgentFailure(BoundaryError):
    """The agent strategy raised."""


@contextmanager
def crossing(error: type[BoundaryError], what: str) -> Iterator[None]:
    """Re-raise whatever escapes as ``error``; an already attributed failure keeps its type.

    Cancellation is not a failure and passes through untouched.
    """
    try:
        yield
    except BoundaryError:
        raise
    except Exception as cause:
        raise error(f"{what} failed: {type(cause).__name__}: {cause}") from cause


_EXTRAS = {
    "gateway": ("aiohttp", "llguidance", "starlette", "uvicorn"),
    "hf": ("torch", "transformers"),
}


def install_hint(package: str | None) -> str:
    """How to get a package that an extra of kifu asks for."""
    top = (package or "").partition(".")[0]
    extra = next((name for name, packages in _EXTRAS.items() if top in packages), "hf")
    return f"pip install 'kifu[{extra}]'"


def shortened(text: str) -> str:
    """A message in which no word and no line is longer than people read: such a one keeps its ends and says how long.

    The ends are what tells where and what to do; what stands between is the input that a message quotes.
    """
    text = re.sub(r"\S{401,}", lambda word: _ends(word[0], 100), text)
    return re.sub(r".{4001,}", lambda line: _ends(line[0], 1000), text)


def _ends(text: str, kept: int) -> str:
    return f"{text[:kept]}…({len(text):,} characters)…{text[-kept:]}"


def nearest(name: str, known: list[str]) -> str:
    """Suggest names close to ``name`` whatever their case, ending with the whole list; for error messages."""
    if not known:
        return "there is none to choose from."
    folded = {item.casefold(): item for item in known}
    close = get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    hint = f"did you mean `{folded[close[0]]}`? " if close else ""
    return f"{hint}Known: {', '.join(sorted(known))}."


_EXPECTED = {
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "multiple_of": "a multiple of {multiple_of}",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "at least {min_length} of them",
    "string_too_short": "text of at least {min_length} characters",
    "literal_error": "{expected}",
}
"""Kind of a validation error of pydantic to what would have been right."""


def found_expected(problem: Mapping[str, Any]) -> str:
    """What one validation error of pydantic found, and what it expected; for error messages."""
    match problem["input"]:
        case dict():
            found = "an object"
        case list() | tuple() as several:
            found = f"a list of {len(several)}" if several else "an empty list"
        case None:
            found = "nothing"
        case bool() as value:
            found = str(value).lower()
        case value:
            found = repr(value)
    expected = _EXPECTED.get(problem["type"])
    if expected is None:
        return f"{problem['msg'].removeprefix('Value error, ')}, found {found}"
    return f"found {found}, expected {expected.format(**problem.get('ctx', {}))}"
