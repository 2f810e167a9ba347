"""A back-end proves its guarantees: it attacks a box of its own and advertises what held.

The attacks are in `probes`. Some are made by one process and judged by what it says; the others are judged from
outside, by how the call ended.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kifu.errors import SandboxFailure
from kifu.sandbox import probes
from kifu.sandbox.contract import Export, Guarantee, Limits, Proof, Ran, Reason, Wanted

SELF_TEST = Limits(
    wall_s=60.0,
    cpu_s=5,
    mem_total_bytes=512 << 20,
    mem_process_bytes=256 << 20,
    pids=16,
    disk_bytes=1 << 20,
    inodes=200,
    tmp_bytes=1 << 20,
    file_bytes=16 << 20,
    output_kill_bytes=1 << 20,
)
_INSIDE = (
    Guarantee.NET_NONE,
    Guarantee.FS_PRIVATE,
    Guarantee.FS_READ_ONLY,
    Guarantee.PID_PRIVATE,
    Guarantee.IPC_PRIVATE,
    Guarantee.NO_SECRETS,
    Guarantee.NO_PRIVILEGES,
    Guarantee.SYSCALLS,
    Guarantee.MEM_PROCESS,
    Guarantee.CPU_HARD,
    Guarantee.PIDS_HARD,
    Guarantee.DISK_HARD,
)
"""Judged by the attacker itself, in one call, in this order: what it fills or forks comes last."""


class ProbeBox(Protocol):
    """A box that can be attacked."""

    def probe(self, probe: tuple[str, ...], limits: Limits) -> Ran:
        """Run `probes.main`: its module's name, the facts as JSON, the names of the probes."""
        ...

    def read(self, wanted: Wanted) -> Export:
        """As `Box.read`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What the host holds that no box may reach."""

    socket: str
    """Abstract, so that nothing of it stays when the prover is killed."""
    paths: tuple[str, ...]
    """Folders that may neither be seen nor named in a box."""


def run_self_test(name: str, box: ProbeBox, *, paths: tuple[str, ...] = ()) -> Proof:
    """Attack ``box``, made with the limits `SELF_TEST`, and say which guarantees held.

    Args:
        name: of the back-end.
        box: to attack.
        paths: of the host that belong to the box and must not show in it.
    """
    failed: dict[Guarantee, str] = {}
    with _planted(paths) as planted:
        failed.update(_from_inside(box, planted))
        for guarantee, judge in _OUTSIDE.items():
            problem = judge(box, planted)
            if problem:
                failed[guarantee] = problem
    held = frozenset(guarantee for guarantee in (*_INSIDE, *_OUTSIDE) if guarantee not in failed)
    return Proof(backend=name, held=held, failed=tuple(sorted(failed.items())))


@contextmanager
def _planted(more: tuple[str, ...]) -> Iterator[Planted]:
    name = f"kifu-{secrets.token_hex(8)}"
    own = [str(Path(probes.__file__).parent), str(Path.home())]
    paths = tuple(path for path in own if len(path) > 1 and not path.startswith("/usr/"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen(4)
        yield Planted(socket=name, paths=(*paths, *more))


def _facts(planted: Planted) -> str:
    limits = SELF_TEST
    return json.dumps(
        {
            "socket": planted.socket,
            "paths": planted.paths,
            "pid": os.getpid(),
            "pids": limits.pids,
            "disk_bytes": limits.disk_bytes,
            "inodes": limits.inodes,
            "mem_process_bytes": limits.mem_process_bytes,
            "mem_total_bytes": _HOARD.mem_total_bytes,
            "cpu_s": limits.cpu_s,
        }
    )


def _attack(box: ProbeBox, planted: Planted, *names: str, limits: Limits = SELF_TEST) -> Ran:
    return box.probe((probes.__name__, _facts(planted), *names), limits)


def _from_inside(box: ProbeBox, planted: Planted) -> dict[Guarantee, str]:
    ran = _attack(box, planted, *_INSIDE)
    if ran.reason is not Reason.EXIT or ran.code != 0:
        what = (
            f"the self-test ended by {ran.reason} {ran.code}: {ran.message or ran.err[-300:].decode(errors='replace')}"
        )
        return dict.fromkeys(_INSIDE, what)
    try:
        found = json.loads(ran.out)
    except ValueError as error:
        raise SandboxFailure(f"the self-test answered {ran.out[:200]!r}") from error
    return {guarantee: found[guarantee] for guarantee in _INSIDE if found[guarantee]}


def _no_survivors(box: ProbeBox, planted: Planted) -> str:
    _attack(box, planted, "survive")
    seen = Wanted(patterns=("survivor",), with_data=False)
    before = box.read(seen).tree.files.get("survivor")
    time.sleep(0.02)
    after = box.read(seen).tree.files.get("survivor")
    if before is None:
        return "the attack left no trace, so nothing is known"
    return "" if before == after else "a process went on writing after its call had returned"


def _wall(box: ProbeBox, planted: Planted) -> str:
    ran = _attack(box, planted, "hang", limits=replace(SELF_TEST, wall_s=0.1))
    ok = ran.reason is Reason.TIMEOUT and ran.wall_s < 20
    return "" if ok else f"a call limited to 0.1 s ended by {ran.reason} after {ran.wall_s:.1f} s"


def _output(box: ProbeBox, planted: Planted) -> str:
    ran = _attack(box, planted, "flood", limits=SELF_TEST)
    kept = len(ran.out)
    ok = ran.reason is Reason.OUTPUT_LIMIT and kept <= SELF_TEST.output_keep_bytes
    return "" if ok else f"endless output ended by {ran.reason}, {kept} bytes kept"


_HOARD = replace(SELF_TEST, mem_total_bytes=64 << 20)


def _mem_watched(box: ProbeBox, planted: Planted) -> str:
    ran = _attack(box, planted, "hoard", limits=_HOARD)
    return "" if ran.reason is Reason.MEM_LIMIT else f"128 MB under a limit of 64 MB ended by {ran.reason}"


_OUTSIDE = {
    Guarantee.NO_SURVIVORS: _no_survivors,
    Guarantee.WALL: _wall,
    Guarantee.OUTPUT: _output,
    Guarantee.MEM_WATCHED: _mem_watched,
}
