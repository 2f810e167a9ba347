"""Patterns of paths: ``*`` and ``?`` within a name, ``**`` for any number of folders. Standard library only."""

from fnmatch import fnmatchcase


def matches(path: str, patterns: list[str]) -> bool:
    """Whether a relative path fits one of the patterns.

    >>> matches("src/a/b.py", ["src/**/*.py"]), matches("src/b.py", ["src/**/*.py"]), matches("a/b.py", ["*.py"])
    (True, True, False)
    """
    parts = path.split("/")
    return any(_fits(parts, pattern.split("/")) for pattern in patterns)


def _fits(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fits(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])
