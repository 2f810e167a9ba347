"""An environment in a process of its own: what hangs can be killed, what crashes takes nothing with it.

Parent and child speak JSON lines over pipes; nothing is unpickled. The child gets a short list of environment
variables, so no secret of the parent reaches it, and ends when the parent does.
"""

import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kifu.envs.calling.relay import Relay
from kifu.envs.calling.wire import call_out, shown_in, snapshot_in, snapshot_out, task_out, verdict_in, view_in
from kifu.envs.contract import Environment
from kifu.envs.files import LOADED_FROM_FILE
from kifu.envs.spec import Snapshot, Task, ToolSpec
from kifu.envs.text import visible
from kifu.envs.view import View
from kifu.errors import (
    BoundaryError,
    EnvironmentFailure,
    SandboxFailure,
    ToolFailure,
    UsageError,
    VerifierFailure,
)
from kifu.records import ToolCall

LINE_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer of the child; more is a failure."""
ATTRIBUTED: dict[str, type[BoundaryError]] = {
    kind.__name__: kind for kind in (EnvironmentFailure, SandboxFailure, ToolFailure, VerifierFailure)
}
"""Failures the child may have attributed itself."""
CLOSE_S = 5.0
"""Seconds the child has to close before it is killed."""
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "HF_HUB_OFFLINE")
"""Environment variables the child sees."""


class ProcessEnvironment(Environment):
    """Stands for an environment that lives in a child process.

    Args:
        reference: ``module:Class`` or ``path/to/file.py:Class``.
    """

    def __init__(self, reference: str) -> None:
        self._child = _Child(reference)

    def reset(self, task: Task, seed: int) -> Any:  # noqa: ANN401  # whatever the child's environment returned
        """Reset the child's environment."""
        if self.effect_log is not None and self._child.relay is None:
            self._child.relay = Relay(self.effect_log)
        return shown_in(self._child.ask("reset", task=task_out(task), seed=seed))

    def step(self, call: ToolCall) -> Any:  # noqa: ANN401
        """Execute one call in the child."""
        return shown_in(self._child.ask("step", call=call_out(call)))

    def invalid(self, error: str) -> Any:  # noqa: ANN401
        """Let the child's environment answer a turn that is no call."""
        return shown_in(self._child.ask("invalid", error=error))

    def answered(self, text: str) -> None:
        """Pass the final message on."""
        self._child.ask("answered", text=text)

    def verify(self) -> Any:  # noqa: ANN401
        """Judge in the child."""
        return verdict_in(self._child.ask("verify"))

    def snapshot(self) -> Snapshot:
        """The child's state."""
        return snapshot_in(self._child.ask("snapshot"))

    def restore(self, ref: Snapshot) -> None:
        """Give the child's environment its state back."""
        self._child.ask("restore", ref=snapshot_out(ref))

    def close(self) -> None:
        """Close the child's environment, then end the child."""
        self._child.close()

    def kill(self) -> None:
        """End the child now; a call that waits for it fails at once."""
        self._child.kill()

    def tools(self) -> tuple[ToolSpec, ...]:
        """As of the last answer."""
        return self._child.view.tools

    def allowed(self) -> tuple[str, ...] | None:
        """As of the last answer."""
        return self._child.view.allowed

    def potential(self) -> float | None:
        """As of the last answer."""
        return self._child.view.potential

    def state_key(self) -> str | None:
        """As of the last answer."""
        return self._child.view.state_key

    def state_digest(self) -> str | None:
        """As of the last answer."""
        return self._child.view.digest


class _GoneError(EnvironmentFailure):
    """The child is no longer there, or must not be."""


class _Child:
    """The process and the two pipes."""

    def __init__(self, reference: str) -> None:
        self.view = View()
        self.relay: Relay | None = None
        """Writes what the child's environment notes of its effects, where a log is kept."""
        self._notes = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kifu.envs.calling.worker", reference],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._notes,
            start_new_session=True,
            env={
                **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )

    def ask(self, what: str, **given: Any) -> dict[str, Any]:  # noqa: ANN401
        """Send one request and wait for its answer.

        Raises:
            UsageError: the environment raised one.
            EnvironmentFailure: the child raised something else, ended, or answered at unbounded length.
        """
        answer = self._exchange(what, **given)
        self.view = view_in(answer["view"])
        found_here: dict[str, Any] = answer["found"]
        return found_here

    def _exchange(self, what: str, **given: Any) -> dict[str, Any]:  # noqa: ANN401
        assert self._process.stdout is not None
        try:
            self._send({"do": what, "effects": self.relay is not None, **given})
            line = self._process.stdout.readline(LINE_LIMIT)
        except (OSError, ValueError) as error:
            raise _GoneError(f"{what}: {self._last_words()}") from error
        if not line.endswith(b"\n"):
            self.kill()
            found = f"an answer of more than {LINE_LIMIT} bytes" if line else self._last_words()
            raise _GoneError(f"{what}: {found}")
        answer: dict[str, Any] = json.loads(line)
        if self.relay is not None:
            self.relay.write(answer.get("effects", []))
        if "error" in answer:
            kind, text = answer["error"], answer["text"]
            if kind == "UsageError":
                raise UsageError(text)
            raise ATTRIBUTED.get(kind, EnvironmentFailure)(text if kind in ATTRIBUTED else f"{kind}: {text}")
        return answer

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._notes.seek(0, os.SEEK_END)
        self._notes.seek(max(0, self._notes.tell() - 1000))
        said = visible(self._notes.read()).strip()
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        hint = " (from outside, or by the system for want of memory)" if code == -signal.SIGKILL else ""
        return f"the process {how}{hint}" + (f"; it said: {said}" if said else "")

    def close(self) -> None:
        """Ask the child to close and end; kill it when it does not.

        Raises:
            EnvironmentFailure: closing raised in the child.
        """
        late = threading.Timer(CLOSE_S, self.kill)
        late.start()
        try:
            if self._process.poll() is None:
                with suppress(_GoneError):  # it ended by itself, or was late
                    self._exchange("close")
        finally:
            self._process.wait()
            late.cancel()
            for pipe in (self._process.stdin, self._process.stdout, self._notes):
                if pipe is not None:
                    with suppress(OSError):  # a broken pipe has nothing left to flush
                        pipe.close()

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()


def process_factory(factory: Callable[[], Environment]) -> Callable[[], Environment]:
    """A factory of the same environment in a process of its own.

    Raises:
        UsageError: the factory is not a class that another process can import.
    """
    if not isinstance(factory, type) or "." in factory.__qualname__:
        raise UsageError(
            f'isolation = "process": found {factory!r}, expected a class at the top level of a module, '
            "so that another process can import it"
        )
    module = factory.__module__
    importable = module != "__main__" and not module.startswith(LOADED_FROM_FILE)
    source = module if importable else str(Path(inspect.getfile(factory)).resolve())
    return lambda: ProcessEnvironment(f"{source}:{factory.__name__}")
