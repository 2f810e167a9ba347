"""Runs attacks as one user: requests and answers are JSON lines. Started by the fixtures of this room.

Arguments: number of the user to become (0 stays root), interpreter of the fork servers. Everything is imported before
the user changes, because the new one may not be able to read it.
"""

import base64
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kifu.sandbox import BoxPolicy, Command, Denied, Entry, Kind, Limits, Network, NsBackend, Tree, Wanted
from kifu.sandbox.ns.box import NsBox

Given = dict[str, Any]


class Driver:
    """Back-ends by what they leave out, each started once."""

    def __init__(self, interpreter: str) -> None:
        self._interpreter = interpreter
        self._backends: dict[frozenset[str], NsBackend] = {}

    def backend(self, without: list[str]) -> NsBackend:
        key = frozenset(without)
        if key not in self._backends:
            self._backends[key] = NsBackend(interpreter=self._interpreter, without=key)
        return self._backends[key]

    def box(self, request: Given) -> NsBox:
        base = Tree.of(request.get("files", {}))
        limits = _limits(request)
        return self.backend(request["without"]).open(BoxPolicy(base=base, limits=limits))

    def run(self, request: Given) -> Given:
        """One call, or a victim's call in another box and then the attacker's, or several in one box."""
        box = self.box(request)
        victim: threading.Thread | None = None
        pid = 0
        if request.get("victim"):
            other = self.box({**request, "limits": {}})
            marked = f"{request['victim']}\nmarker = {request['facts']['marker']!r}\n"
            command = _command(marked, {**request, "limits": {"wall_s": 120}})
            victim = threading.Thread(target=other.run, args=(command,))
            victim.start()
            pid = _wait_for(marked)
        answer: Given = {}
        for code in request["codes"]:
            answer = _run(box, _command(code, request))
        if victim is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            victim.join()
            other.close()
        box.close()
        return answer

    def export(self, request: Given) -> Given:
        """What leaves a box after an attacker has prepared it."""
        box = self.box(request)
        other = self.box({**request, "files": {"other.txt": "another box's"}})
        other.run(_command("pass", request))
        box.run(_command(request["codes"][0], request))
        found = box.read(Wanted(patterns=tuple(request["patterns"]), max_bytes=request.get("max_bytes", 1 << 20)))
        box.close()
        other.close()
        files = {path: data.decode("utf-8", "replace") for path, data in found.tree.files.items()}
        return {"files": files, "refused": found.refused, "complete": found.is_complete}

    def put(self, request: Given) -> Given:
        """What happens to files written into a box that an attacker has prepared."""
        box = self.box(request)
        box.run(_command(request["codes"][0], request))
        entries = [Entry(path=path, data=data.encode()) for path, data in request["put"].items()]
        entries += [Entry(path=path, kind=Kind.GONE) for path in request.get("gone", [])]
        try:
            box.write(Tree(tuple(entries)))
            denied = ""
        except Denied as error:
            denied = str(error)
        found = box.read(Wanted(patterns=("**",))).tree.files
        box.close()
        return {"denied": denied, "files": {path: data.decode("utf-8", "replace") for path, data in found.items()}}

    def prove(self, request: Given) -> Given:
        """What the self-test finds."""
        proof = self.backend(request["without"]).prove()
        return {"held": sorted(proof.held), "failed": dict(proof.failed), "problem": proof.problem}

    def close(self) -> None:
        for backend in self._backends.values():
            backend.close()


def _wait_for(code: str) -> int:
    """Number of the process that runs a program, seen from outside."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                found = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
                if code.encode() in found and found.startswith(b"/usr/bin/python3"):
                    return int(folder.name)
        time.sleep(0.01)
    raise TimeoutError("the victim did not start")


def _command(code: str, request: Given) -> Command:
    return Command(
        argv=("/usr/bin/python3", "-I", "-S", "-c", code),
        env=(("FACTS", json.dumps(request["facts"])),),
        limits=_limits(request),
        network=Network(request.get("network", "none")),
    )


def _limits(request: Given) -> Limits:
    return Limits(**{"wall_s": 120.0, **request.get("limits", {})})


def _run(box: NsBox, command: Command) -> Given:
    ran = box.run(command)
    return {
        "reason": ran.reason,
        "code": ran.code,
        "signal": ran.signal,
        "out": base64.b64encode(ran.out).decode(),
        "err": ran.err.decode("utf-8", "replace"),
        "total": ran.total_bytes,
        "wall_s": ran.wall_s,
        "message": ran.message,
    }


def main() -> None:
    uid, interpreter = int(sys.argv[1]), sys.argv[2]
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    driver = Driver(interpreter)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(driver, request["op"])(request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    driver.close()


if __name__ == "__main__":
    main()
