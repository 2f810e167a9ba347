"""Machines that refuse a step, simulated: each is refused with the step, the error and what to do, never downgraded.

A user namespace with limits of its own, a mask over /proc, a seccomp filter that refuses a call, a program that says it
runs elsewhere: each is a real condition of the kernel, made in a child process before the back-end starts.
"""

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kifu.errors import UsageError
from kifu.sandbox import (
    Guarantee,
    HostBackend,
    NsBackend,
    Policy,
    SandboxUnavailable,
    open_sandbox,
)
from kifu.sandbox.ns import kernel
from kifu.sandbox.remedies import remedy_of

PROGRAM = """
import importlib.util, json, os, struct, sys
spec = importlib.util.spec_from_file_location("kernel", {kernel!r})
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
install_filter, map_ids, mount, prctl, unshare = (
    kernel.install_filter, kernel.map_ids, kernel.mount, kernel.prctl, kernel.unshare)
{setup}
from kifu.sandbox import NsBackend, Policy, SandboxUnavailable, open_sandbox  # after: it starts threads
backend = NsBackend()
try:
    sandbox = open_sandbox(Policy(), backends=[backend])
    answer = {{"opened": True}}
except SandboxUnavailable as error:
    (proof,) = error.proofs
    answer = {{"opened": False, "errno": proof.errno, "problem": proof.problem, "remedy": proof.remedy,
              "held": sorted(proof.held), "text": str(error)}}
backend.close()
print(json.dumps(answer))
"""
REFUSE = """
def refuse(numbers, error):
    lines = [(0x20, 0, 0, 4), (0x15, 1, 0, 0xC000003E if os.uname().machine == "x86_64" else 0xC00000B7),
             (0x06, 0, 0, 0x7FFF0000), (0x20, 0, 0, 0)]
    for number, argument in numbers:
        if argument is None:
            lines += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error)]
        else:
            lines += [(0x15, 0, 4, number), (0x20, 0, 0, 16), (0x15, 0, 1, argument), (0x06, 0, 0, 0x50000 | error),
                      (0x06, 0, 0, 0x7FFF0000)]
    lines += [(0x06, 0, 0, 0x7FFF0000)]
    prctl(38, 1)
    install_filter(b"".join(struct.pack("HBBI", *line) for line in lines))
CALL = {"x86_64": {"unshare": 272, "prctl": 157, "mount": 165}, "aarch64": {"unshare": 97, "prctl": 167, "mount": 40}}
CALL = CALL[os.uname().machine]
"""
NEW_USER = "outside = os.getuid(), os.getgid()\nunshare(0x10000000 | 0x20000)\nmap_ids(inside=0, outside=outside)\n"
HOSTS = {
    # name: what to do before, the step that fails, the error, a part of the remedy
    "no user namespaces": (
        REFUSE + "refuse([(CALL['unshare'], 0x10000000 | 0x20000)], 1)",
        "user namespace",
        errno.EPERM,
        "AppArmor",
    ),
    "no user namespaces in the kernel": (
        REFUSE + "refuse([(CALL['unshare'], 0x10000000 | 0x20000)], 38)",
        "user namespace",
        errno.ENOSYS,
        "boot one that has",
    ),
    "no user namespaces left": (
        NEW_USER + "open('/proc/sys/user/max_user_namespaces', 'w').write('0')",
        "user namespace",
        errno.ENOSPC,
        "user.max_user_namespaces",
    ),
    "no network namespaces left": (
        NEW_USER + "open('/proc/sys/user/max_net_namespaces', 'w').write('0')",
        "namespaces",
        errno.ENOSPC,
        "user.max_",
    ),
    "a mask over a part of /proc": (
        NEW_USER + "mount(None, '/', flags=1 << 18 | 16384)\nmount('mask', '/proc/sys', kind='tmpfs')",
        "proc",
        errno.EPERM,
        "systempaths=unconfined",
    ),
    "no file systems may be mounted": (
        REFUSE + "refuse([(CALL['mount'], None)], 1)",
        "",
        errno.EPERM,
        "",
    ),
}


def _open_on(setup: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=textwrap.dedent(setup), kernel=str(kernel.__file__))],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_refuses_a_step_is_refused_with_the_step_the_error_and_a_remedy(host: str) -> None:
    setup, step, number, remedy = HOSTS[host]
    answer = _open_on(setup)
    assert answer["opened"] is False
    assert answer["errno"] == number
    assert answer["held"] == []
    assert f"stopped at `{step}" in str(answer["problem"])
    assert remedy in str(answer["remedy"])
    assert f"errno {number}" in str(answer["text"])


def test_the_same_program_opens_a_sandbox_on_this_host() -> None:
    assert _open_on("") == {"opened": True}


def test_a_host_without_filters_of_system_calls_is_refused() -> None:
    """prctl(PR_SET_SECCOMP) fails in every call, so that no probe runs and nothing is proved."""
    answer = _open_on(REFUSE + "refuse([(CALL['prctl'], 22)], 22)")
    assert answer["opened"] is False
    assert Guarantee.SYSCALLS not in answer["held"]  # type: ignore[operator]
    assert Guarantee.NET_NONE not in answer["held"]  # type: ignore[operator]


def test_a_host_without_overlays_is_refused() -> None:
    """A mount of the kind ``overlay`` fails, all others work: the kernel lacks the module."""
    source = "from kifu.sandbox.ns import server\n"
    source += "server._SECOND_STAGE = tuple(server._SECOND_STAGE)\n"
    source += "read = server._sources\n"
    source += "def sources(modules):\n"
    source += "    swap = 'kind=\"overlay\"', 'kind=\"no-overlay\"'\n"
    source += "    return [(name, text.replace(*swap)) for name, text in read(modules)]\n"
    source += "server._sources = sources\n"
    answer = _open_on(source)
    assert answer["opened"] is False
    assert answer["errno"] == errno.ENODEV
    assert "Linux 6.6" in str(answer["remedy"])


@pytest.mark.parametrize(
    ("platform", "machine", "step"),
    [("darwin", "arm64", "platform"), ("win32", "AMD64", "platform"), ("linux", "riscv64", "architecture")],
)
def test_another_system_or_processor_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, step: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("X", "host", "1", "1", machine)))
    backend = NsBackend()
    with pytest.raises(SandboxUnavailable) as caught:
        open_sandbox(Policy(), backends=[backend])
    (proof,) = caught.value.proofs
    assert proof.held == frozenset()
    assert f"`{step}`" in proof.problem
    assert proof.remedy == remedy_of(step, None)
    assert backend.pids() == []


def test_a_missing_interpreter_is_refused_with_the_way_to_name_another() -> None:
    backend = NsBackend(interpreter="/no/such/python3")
    with pytest.raises(SandboxUnavailable, match="interpreter="):
        open_sandbox(Policy(), backends=[backend])


def test_no_isolation_is_never_taken_without_being_asked_for_twice() -> None:
    with pytest.raises(UsageError, match="accept_no_isolation"):
        open_sandbox(Policy(), backends=["unsafe-host"])
    if os.geteuid() == 0:
        with pytest.raises(UsageError, match="refused to root"):
            open_sandbox(Policy(require=frozenset()), backends=["unsafe-host"], accept_no_isolation=True)


UNSAFE = """
import json, os, tempfile
from pathlib import Path
from kifu.sandbox import *
import kifu.testing
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(61234, 61234, 61234); os.setresuid(61234, 61234, 61234)
try:
    open_sandbox(Policy(), backends=["unsafe-host"], accept_no_isolation=True)
    raise SystemExit("a policy that requires something got a host without isolation")
except SandboxUnavailable:
    pass
try:
    backends = [NsBackend(interpreter="/no/such/python3"), "unsafe-host"]
    open_sandbox(Policy(), backends=backends, accept_no_isolation=True)
    raise SystemExit("a machine where the first back-end fails was downgraded")
except SandboxUnavailable as error:
    assert [proof.backend for proof in error.proofs] == ["ns", "unsafe-host"]
policy = Policy(base=Tree.of({"a": "1"}), tools=(shell(),), require=frozenset())
folder = tempfile.TemporaryDirectory(prefix="kifu-effects-")
path = Path(folder.name) / "effects.jsonl"
file = EffectFile(path)
log = file.chain("episode")
with open_sandbox(policy, backends=["unsafe-host"], accept_no_isolation=True, log=log) as sandbox:
    branch = sandbox.fork()
    result = sandbox.call("bash", {"command": "cat a; echo 2 > a; id -u"})
    kept = branch.export(Wanted(patterns=("*",))).tree.files
    branch.close()
    sandbox.call("nothing")
    file.close()
    lines = [json.loads(line)["content"] for line in path.read_text().splitlines()]
    unisolated = check_effects(path).unisolated
    folder.cleanup()
    print(json.dumps({"out": result.out.decode(), "isolated": sandbox.is_isolated, "held": sorted(sandbox.guarantees),
                      "backend": sandbox.backend, "branch": kept["a"].decode(), "uid": os.getuid(),
                      "lines": [[line["kind"], line["facts"].get("isolation")] for line in lines],
                      "unisolated": unisolated}))
"""


def test_without_isolation_every_sandbox_and_every_line_it_writes_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", UNSAFE], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("out") == f"1{found.pop('uid')}\n"
    lines = found.pop("lines")
    assert {kind for kind, _ in lines} >= {"open", "call", "export", "denied"}
    assert {isolation for _, isolation in lines} == {"none"}
    assert found.pop("unisolated") == ["episode", "episode/1"]
    assert found == {"isolated": False, "held": [], "backend": "unsafe-host", "branch": "1"}
    assert list(Path("/tmp").glob("kifu-box-*")) == []


def test_the_unsafe_backend_is_refused_to_root_even_when_made_by_hand() -> None:
    if os.geteuid() != 0:
        assert HostBackend().prove().held == frozenset()
        return
    with pytest.raises(UsageError):
        HostBackend()
