"""Runs a function of a user's file, each time in a process of its own. Standard library only; imports nothing of kifu.

Started by `kifu.gateway.forked` with the user's interpreter: ``python host.py FILE FUNCTION``. What the file imports is
imported once; then every attempt is a fork that executes the file with the environment of its attempt. Lines of JSON
come in, ``{"job", "task", "environment"}`` or ``{"end": job}``, and go out: ``{"ready": true}``, then for every job
``{"job", "value"}`` or ``{"job", "error"}``. When the input ends, so does every process.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib
import importlib.util
import inspect
import json
import os
import selectors
import signal
import sys
import traceback
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn

MAX_TEXT = 65_536
CHUNK = 65_536


def warm(path: str) -> None:
    """Import what a file imports, so that no attempt has to."""
    with open(path, "rb") as handle:  # noqa: PTH123 - the fewest imports that a user's interpreter must make
        tree = ast.parse(handle.read(), path)
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = importlib.import_module(node.module)
            for alias in node.names:
                if alias.name != "*" and not hasattr(found, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def attempt(path: str, name: str, job: dict[str, Any]) -> dict[str, Any]:
    """Execute the file and call its function; gives the line to send."""
    os.environ.update(job["environment"])
    try:
        value = getattr(_executed(path), name)(job["task"])
        if inspect.isawaitable(value):
            value = asyncio.run(_waited(value))
        text = value if isinstance(value, str) or value is None else json.dumps(value, default=str)
        return {"job": job["job"], "value": text if text is None else text[:MAX_TEXT]}
    except BaseException as error:  # whatever escapes is how the attempt went
        where = traceback.extract_tb(error.__traceback__)[-1:]
        place = "".join(f" ({os.path.basename(item.filename)}, line {item.lineno})" for item in where)  # noqa: PTH119
        return {"job": job["job"], "error": f"{type(error).__name__}: {error}{place}"[:MAX_TEXT]}


def _executed(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("agent_of_a_user", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def _waited(value: Any) -> Any:  # noqa: ANN401 - whatever a user's function returns
    return await value


class Host:
    """The parent of all attempts.

    Args:
        path: the user's file.
        name: of the function in it.
        out: descriptor that answers are written to.
    """

    def __init__(self, path: str, name: str, *, out: int) -> None:
        self.path, self.name, self.out = path, name, out
        self.selector = selectors.DefaultSelector()
        self.selector.register(0, selectors.EVENT_READ, None)
        self.children: dict[int, tuple[int, int]] = {}
        """By job: process and the descriptor it is heard through."""
        self.heard: dict[int, bytes] = {}
        """By job."""
        self.asked = b""

    def serve(self) -> None:
        """Work until the input ends."""
        while True:
            for key, _ in self.selector.select():
                if key.data is not None and key.data not in self.children:
                    continue  # ended a moment ago
                piece = os.read(key.fd, CHUNK)
                if key.data is not None:
                    self.hear(key.data, piece)
                elif not piece:
                    return
                else:
                    *lines, self.asked = (self.asked + piece).split(b"\n")
                    for line in lines:
                        self.obey(json.loads(line))

    def say(self, line: dict[str, Any]) -> None:
        """Send one line."""
        _write(self.out, line)

    def obey(self, line: dict[str, Any]) -> None:
        """Start an attempt, or end one."""
        if "end" in line:
            self.end(line["end"])
            return
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.become(line, writing)
        os.close(writing)
        self.children[line["job"]], self.heard[line["job"]] = (pid, reading), b""
        self.selector.register(reading, selectors.EVENT_READ, line["job"])

    def become(self, line: dict[str, Any], writing: int) -> NoReturn:
        """Be an attempt."""
        try:
            os.setsid()
            self.selector.close()
            for _, reading in self.children.values():
                os.close(reading)
            os.close(self.out)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _write(writing, attempt(self.path, self.name, line))
        finally:
            os._exit(0)

    def hear(self, job: int, piece: bytes) -> None:
        """Take what an attempt says; one line is all it has to say."""
        self.heard[job] += piece
        said = self.heard[job]
        if piece and b"\n" not in said:
            return
        status = self.end(job)
        ended = {"job": job, "error": f"its process ended without an answer, wait status {status}"}
        self.say(json.loads(said) if b"\n" in said else ended)

    def end(self, job: int) -> int | None:
        """End an attempt and what it started; gives its status."""
        if job not in self.children:
            return None
        pid, reading = self.children.pop(job)
        self.selector.unregister(reading)
        self.heard.pop(job)
        os.close(reading)
        with suppress(OSError):  # it is its own group only once it has begun
            os.killpg(pid, signal.SIGKILL)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]


def _write(descriptor: int, line: dict[str, Any]) -> None:
    left = json.dumps(line).encode() + b"\n"
    while left:
        left = left[os.write(descriptor, left) :]


def main() -> None:
    """Warm up and serve."""
    path, name = os.path.abspath(sys.argv[1]), sys.argv[2]  # noqa: PTH100
    out = os.dup(1)
    os.dup2(2, 1)  # what agents print is no answer
    sys.path[0] = os.path.dirname(path)  # noqa: PTH120
    sys.argv = [path]
    sys.dont_write_bytecode = True  # a file that changes is never taken for its older self
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host = Host(path, name, out=out)
    try:
        warm(path)
    except BaseException as error:  # told to whoever started this
        host.say({"failed": f"{type(error).__name__}: {error}"})
        return
    gc.collect()
    gc.freeze()
    host.say({"ready": True})
    try:
        host.serve()
    finally:
        for job in list(host.children):
            host.end(job)


if __name__ == "__main__":
    main()
