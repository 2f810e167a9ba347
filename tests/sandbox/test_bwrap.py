"""The bubblewrap back-end: refused where the program is missing, honest about what it cannot prove where it is not."""

import os
import shutil
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from kifu.sandbox import (
    DEFAULT_REQUIRED,
    BwrapBackend,
    Guarantee,
    Limits,
    Link,
    Policy,
    Reason,
    Sandbox,
    SandboxUnavailable,
    open_sandbox,
    shell,
)
from kifu.sandbox.contract import BoxPolicy, Command
from kifu.sandbox.ns.server import FIRST_UID
from kifu.sandbox.tree import Tree
from kifu.testing import check_sandbox

TOP = Path(__file__).resolve().parents[2]
LACKS = frozenset({Guarantee.DISK_HARD, Guarantee.NO_SECRETS, Guarantee.PID_PRIVATE})


def test_a_missing_program_is_refused_with_the_way_to_install_it() -> None:
    backend = BwrapBackend(program="/no/such/bwrap")
    with pytest.raises(SandboxUnavailable, match=r"`bwrap` lacks .*no program.*apt-get install bubblewrap"):
        open_sandbox(Policy(), backends=[backend])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """From PATH, or from Debian's archive."""
    found = shutil.which("bwrap")
    if found:
        return found
    folder = tmp_path_factory.mktemp("bubblewrap")
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o755)
    got = subprocess.run([TOP / "scripts" / "bubblewrap", folder], capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"bubblewrap is neither installed nor to be had: {got.stderr.strip()[-200:]}")
    return str(folder / "usr" / "bin" / "bwrap")


@pytest.mark.skipif(os.geteuid() != 0, reason="starts processes of another user")
def test_other_processes_of_its_user_take_nothing_from_a_box(program: str) -> None:
    crowd = [subprocess.Popen(["sleep", "600"], user=FIRST_UID) for _ in range(80)]
    backend = BwrapBackend(program=program)
    try:
        policy = Policy(tools=(shell(),), limits=Limits(pids=16), require=frozenset())
        with open_sandbox(policy, backends=[backend]) as sandbox:
            assert sandbox.call("bash", {"command": "echo here"}).out == b"here\n"
            many = sandbox.call("bash", {"command": "for at in $(seq 40); do sleep 9 & done; wait"})
            assert b"fork" in many.err.lower()
    finally:
        backend.close()
        for process in crowd:
            process.kill()
            process.wait()


def assert_linked(sandbox: Sandbox) -> None:
    """What the program hears on its input it says back on its link, and it is killed when the stop is closed."""
    (read, ours), (mine, write), (stop, alive) = os.pipe(), os.pipe(), os.pipe()
    with ExitStack() as open_now:
        for handle in (read, mine, write, stop):
            open_now.callback(os.close, handle)
        os.write(ours, b"hello\n")
        os.close(ours)
        link = Link(read=read, write=write, stop=stop)
        says = "import os; os.write(int(os.environ['KIFU_LINK']), input().encode())"
        assert sandbox.call("bash", {"command": f'python3 -c "{says}"'}, link=link).code == 0
        assert os.read(mine, 100) == b"hello"
        threading.Timer(0.3, os.close, [alive]).start()
        assert sandbox.call("bash", {"command": "sleep 600"}, link=link).reason is Reason.TIMEOUT


def test_a_link_of_the_other_back_end_does_the_same() -> None:
    with open_sandbox(Policy(tools=(shell(),), limits=Limits(wall_s=60))) as sandbox:
        assert_linked(sandbox)


def test_it_keeps_the_contract_and_proves_what_it_can(program: str) -> None:
    backend = BwrapBackend(program=program)
    try:
        held = check_sandbox(backend)
        assert held >= DEFAULT_REQUIRED - LACKS
        assert not held & {Guarantee.DISK_HARD, Guarantee.NO_SECRETS}
        with pytest.raises(SandboxUnavailable, match="disk_hard"):
            open_sandbox(Policy(), backends=[backend])
        policy = Policy(tools=(shell(),), limits=Limits(wall_s=60), require=held)
        with open_sandbox(policy, backends=[backend]) as sandbox:
            assert sandbox.call("bash", {"command": "echo $((6 * 7)); id -u"}).out == b"42\n1000\n"
            assert sandbox.backend == "bwrap"
            assert_linked(sandbox)
    finally:
        backend.close()
    assert [path for path in Path("/tmp").glob("kifu-box-*") if path.stat().st_uid == os.geteuid()] == []


LEFT_BEHIND = """
for writer in 1 2 3; do
  setsid sh -c 'while :; do echo x; done >> written' &
done
until [ -s written ]; do :; done
"""


def test_nothing_is_written_after_a_call_has_returned(program: str) -> None:
    """Bubblewrap ends with the command, the box's first process begins to end, and only then are all others killed."""
    backend = BwrapBackend(program=program)
    limits = Limits(wall_s=60, file_bytes=1 << 30)
    box = backend.open(BoxPolicy(base=Tree(), limits=limits))
    try:
        for _ in range(60):
            assert box.run(Command(argv=("/bin/sh", "-c", LEFT_BEHIND), limits=limits)).reason is Reason.EXIT
            size = (box.path / "written").stat().st_size
            time.sleep(0.02)
            assert (box.path / "written").stat().st_size == size
            (box.path / "written").unlink()
    finally:
        backend.close()
