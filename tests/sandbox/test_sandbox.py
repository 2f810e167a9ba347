"""The sandbox as an environment uses it: typed calls, snapshots, branches, limits, the log of effects."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kifu.errors import ArgumentError, SandboxFailure, UsageError
from kifu.sandbox import (
    BoxPolicy,
    Command,
    EffectFile,
    Entry,
    Guarantee,
    Kind,
    Limits,
    ListTool,
    Many,
    Mount,
    NsBackend,
    PatchTool,
    Policy,
    ReadTool,
    Reason,
    RelPath,
    RunTool,
    Sandbox,
    SandboxUnavailable,
    Slot,
    Tree,
    Wanted,
    WriteTool,
    check_effects,
    open_sandbox,
    python,
    shell,
)
from kifu.testing import check_sandbox

BASE = Tree.of({"a.py": "x = 1\ny = 2\n", "src/b.txt": "b"})
TOOLS = (shell(), python(), ReadTool(max_bytes=100), WriteTool(max_bytes=100), ListTool(), PatchTool())
LIMITS = Limits(wall_s=60.0)
POLICY = Policy(base=BASE, tools=TOOLS, limits=LIMITS)


@pytest.fixture(scope="module")
def backend() -> Iterator[NsBackend]:
    made = NsBackend()
    yield made
    made.close()


@pytest.fixture
def sandbox(backend: NsBackend) -> Iterator[Sandbox]:
    with open_sandbox(POLICY, backends=[backend]) as made:
        yield made


def test_the_namespace_backend_keeps_its_contract_and_proves_all_it_claims(backend: NsBackend) -> None:
    held = check_sandbox(backend)
    assert held == frozenset(Guarantee) - {Guarantee.MEM_HARD, Guarantee.KERNEL_SEPARATE}


def test_a_call_reports_code_output_and_errors(sandbox: Sandbox) -> None:
    result = sandbox.call("bash", {"command": "echo out; echo err >&2; exit 3"})
    assert (result.reason, result.code, result.out, result.err) == (Reason.EXIT, 3, b"out\n", b"err\n")
    assert not result.is_ok
    assert result.text == "out\nerr"
    assert result.cpu_s > 0
    assert result.peak_bytes > 1 << 20


def test_code_reaches_the_interpreter_by_its_input(sandbox: Sandbox) -> None:
    assert sandbox.call("python", {"code": "print(sum(range(5)))"}).out == b"10\n"


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("rm", {}, "no tool `rm`"),
        ("bash", {}, "is missing"),
        ("bash", {"command": "true", "user": "root"}, "no argument"),
        ("read_file", {"path": "../x"}, "goes up"),
        ("write_file", {"path": "a", "text": "x" * 101}, "at most 100"),
        ("apply_patch", {"patch": "--- a/../x\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n"}, "stays inside its tree"),
        ("write_file", {"path": "src", "text": "x"}, "is a folder"),
    ],
)
def test_what_the_policy_may_not_do_is_denied_and_changes_nothing(
    sandbox: Sandbox, tool: str, arguments: dict[str, str], why: str
) -> None:
    result = sandbox.call(tool, arguments)
    assert (result.reason, result.code) == (Reason.DENIED, None)
    assert why in result.message
    assert sandbox.export(Wanted(patterns=("**",))).tree.files == BASE.files


def test_files_are_read_written_listed_and_patched(sandbox: Sandbox) -> None:
    assert sandbox.call("read_file", {"path": "a.py"}).out == b"x = 1\ny = 2\n"
    assert sandbox.call("read_file", {"path": "none"}).text == "none: no such file"
    assert sandbox.call("write_file", {"path": "new/c[1].txt", "text": "c"}).is_ok
    assert sandbox.call("read_file", {"path": "new/c[1].txt"}).out == b"c"
    assert sandbox.call("list_files", {"pattern": "**/*.txt"}).out == b"new/c[1].txt\t1\nsrc/b.txt\t1\n"
    patch = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@\n x = 1\n-y = 2\n+y = 3\n+z = 4\n"
    assert sandbox.call("apply_patch", {"patch": patch}).is_ok
    assert sandbox.call("bash", {"command": "cat a.py"}).out == b"x = 1\ny = 3\nz = 4\n"
    assert sandbox.call("apply_patch", {"patch": patch}).reason is Reason.DENIED


def test_a_file_above_its_cap_is_not_read(sandbox: Sandbox) -> None:
    sandbox.call("bash", {"command": "yes | head -c 200 > big"})
    result = sandbox.call("read_file", {"path": "big"})
    assert (result.code, result.out) == (1, b"")
    assert "more than 100 bytes" in result.text


def test_a_call_out_of_time_is_over_soon_and_says_so(backend: NsBackend) -> None:
    policy = Policy(tools=(shell(),), limits=Limits(wall_s=0.2))
    with open_sandbox(policy, backends=[backend]) as sandbox:
        start = time.monotonic()
        result = sandbox.call("bash", {"command": "trap '' TERM INT; echo begun; sleep 60"})
        assert result.reason is Reason.TIMEOUT
        assert "too long" in result.text
        assert time.monotonic() - start < 20
        assert sandbox.call("bash", {"command": "true"}).reason in (Reason.EXIT, Reason.TIMEOUT)


def test_ten_gigabytes_of_output_are_cut_off(backend: NsBackend) -> None:
    policy = Policy(tools=(shell(),), limits=Limits(wall_s=60, output_kill_bytes=1 << 20, output_keep_bytes=4096))
    with open_sandbox(policy, backends=[backend]) as sandbox:
        result = sandbox.call("bash", {"command": "yes | head -c 10000000000"})
    assert result.reason is Reason.OUTPUT_LIMIT
    assert len(result.out) == 4096
    assert result.total_bytes < 16 << 20


def test_how_much_output_is_too_much_does_not_depend_on_who_is_faster(backend: NsBackend) -> None:
    """A writer that ends by itself just above the limit, and one just at it."""
    limits = Limits(wall_s=60, output_kill_bytes=40_000, output_keep_bytes=100)
    with open_sandbox(Policy(tools=(shell(),), limits=limits), backends=[backend]) as sandbox:
        for count, reason in ((40_000, Reason.EXIT), (40_001, Reason.OUTPUT_LIMIT)) * 4:
            result = sandbox.call("bash", {"command": f"head -c {count} /dev/zero"})
            assert (result.reason, result.total_bytes) == (reason, count)


def test_nothing_is_read_after_a_call_is_to_be_killed(backend: NsBackend) -> None:
    """However long the kill takes to arrive: a read of each pipe above the limit is all there can be."""
    limits = Limits(wall_s=60, output_kill_bytes=1 << 18, output_keep_bytes=100)
    with open_sandbox(Policy(tools=(shell(),), limits=limits), backends=[backend]) as sandbox:
        for _ in range(3):
            result = sandbox.call("bash", {"command": "yes & yes >&2"})
            assert result.reason is Reason.OUTPUT_LIMIT
            assert 1 << 18 < result.total_bytes <= (1 << 18) + 2 * (1 << 16)


def test_what_was_written_before_the_time_was_up_is_kept(backend: NsBackend) -> None:
    policy = Policy(tools=(shell(),), limits=Limits(wall_s=3.0))
    with open_sandbox(policy, backends=[backend]) as sandbox:
        result = sandbox.call("bash", {"command": "echo begun; echo wrong >&2; sleep 60"})
    assert (result.reason, result.out, result.err) == (Reason.TIMEOUT, b"begun\n", b"wrong\n")


def test_a_missing_interpreter_is_told_apart_from_a_failing_one(backend: NsBackend) -> None:
    tool = RunTool(name="ruby", argv=("/opt/ruby/bin/ruby", "-e", "1"))
    with open_sandbox(Policy(tools=(tool, shell()), limits=LIMITS), backends=[backend]) as sandbox:
        missing = sandbox.call("ruby")
        assert (missing.reason, missing.code) == (Reason.SETUP_FAILED, None)
        assert "/opt/ruby/bin/ruby" in missing.why
        assert missing.text == "The call could not be started."
        assert sandbox.call("bash", {"command": "/opt/ruby/bin/ruby"}).code == 127


def test_a_signal_is_told_apart_from_a_code(sandbox: Sandbox) -> None:
    result = sandbox.call("bash", {"command": "kill -SEGV $$"})
    assert (result.reason, result.code, result.signal) == (Reason.SIGNAL, None, 11)


def test_reset_goes_back_to_the_start_or_to_a_snapshot(sandbox: Sandbox) -> None:
    sandbox.call("bash", {"command": "rm a.py; mkdir a.py; echo 1 > a.py/one"})
    snapshot = sandbox.snapshot()
    sandbox.call("bash", {"command": "rm -rf *"})
    sandbox.reset(snapshot)
    assert sandbox.export(Wanted(patterns=("**",))).tree.files == {"a.py/one": b"1\n", "src/b.txt": b"b"}
    sandbox.reset()
    assert sandbox.export(Wanted(patterns=("**",))).tree.files == BASE.files
    snapshot.close()


def test_sixty_four_branches_are_apart(sandbox: Sandbox) -> None:
    sandbox.call("bash", {"command": "echo common > c"})
    snapshot = sandbox.snapshot()
    branches = [sandbox.fork(snapshot) for _ in range(64)]
    for number in (0, 31, 63):
        branches[number].call("bash", {"command": f"echo {number} > mine"})
    seen = [branches[number].export(Wanted(patterns=("*",))).tree.files for number in (0, 31, 63, 1)]
    assert [files.get("mine") for files in seen] == [b"0\n", b"31\n", b"63\n", None]
    assert all(files["c"] == b"common\n" for files in seen)
    for branch in branches:
        branch.close()
    snapshot.close()


def test_fifty_snapshots_deep_a_box_still_works_and_all_is_given_back(backend: NsBackend) -> None:
    with open_sandbox(POLICY, backends=[backend]) as first:
        first.call("bash", {"command": "true"})
    before = _held(backend)
    with open_sandbox(POLICY, backends=[backend]) as sandbox:
        snapshots = []
        for number in range(50):
            sandbox.put(Tree.of({f"f{number}": str(number)}))
            snapshots.append(sandbox.snapshot())
        listed = sandbox.call("list_files", {"pattern": "f*"}).out.splitlines()
        assert len(listed) == 50
        sandbox.reset(snapshots[9])
        assert len(sandbox.call("list_files", {"pattern": "f*"}).out.splitlines()) == 10
        for snapshot in snapshots:
            snapshot.close()
    assert _held(backend) == before


def _held(backend: NsBackend) -> list[tuple[object, ...]]:
    names = ("boxes", "layers", "sheets", "overlays", "folders", "handles", "processes")
    return [tuple(state[name] for name in names) for state in backend.state()]


def test_the_disk_limit_holds_over_snapshots(backend: NsBackend) -> None:
    policy = Policy(tools=(shell(),), limits=Limits(wall_s=60, disk_bytes=2 << 20))
    with open_sandbox(policy, backends=[backend]) as sandbox:
        codes = []
        for number in range(4):
            codes.append(sandbox.call("bash", {"command": f"head -c 900000 /dev/zero > f{number}"}).code)
            sandbox.snapshot()
        assert codes == [0, 0, 1, 1]


def test_a_mount_is_shown_read_only_and_without_its_host_path(backend: NsBackend, tmp_path: Path) -> None:
    shown = Path(f"/var/tmp/kifu-mount-{tmp_path.name}-{time.monotonic_ns()}")
    shown.mkdir()
    try:
        (shown / "tool.txt").write_text("a tool")
        shown.chmod(0o755)
        policy = Policy(tools=(shell(),), limits=LIMITS, mounts=(Mount(source=str(shown), target="/opt/tools"),))
        with open_sandbox(policy, backends=[backend]) as sandbox:
            command = "cat /opt/tools/tool.txt; echo x > /opt/tools/x; cat /proc/self/mountinfo"
            result = sandbox.call("bash", {"command": command})
        assert result.out.startswith(b"a tool")
        assert b"Read-only" in result.err
        assert str(shown).encode() not in result.out
    finally:
        for path in (shown / "tool.txt", shown / "x"):
            path.unlink(missing_ok=True)
        shown.rmdir()


def test_many_paths_become_arguments_of_their_own(backend: NsBackend) -> None:
    paths = Slot(name="paths", kind=Many(of=RelPath(under="src"), max_count=2))
    policy = Policy(base=BASE, tools=(RunTool(name="count", argv=("/usr/bin/wc", "-c", paths)),), limits=LIMITS)
    with open_sandbox(policy, backends=[backend]) as sandbox:
        assert sandbox.call("count", {"paths": ["src/b.txt"]}).out == b"1 src/b.txt\n"
        assert sandbox.call("count", {"paths": ["a.py"]}).reason is Reason.DENIED
        assert sandbox.call("count", {"paths": ["src/b"] * 3}).reason is Reason.DENIED


def test_a_server_and_its_client_meet_on_a_loopback_of_their_own(backend: NsBackend) -> None:
    code = """
import socket, threading
server = socket.create_server(("127.0.0.1", 8080))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello")).start()
print(socket.create_connection(("127.0.0.1", 8080)).recv(5))
"""
    slot = Slot(name="code", kind=python().stdin.kind)  # type: ignore[union-attr]
    for network, expected in (("loopback", b"b'hello'\n"), ("none", b"")):
        tool = RunTool(name="serve", argv=("/usr/bin/python3", "-"), stdin=slot, network=network)  # type: ignore[arg-type]
        with open_sandbox(Policy(tools=(tool,), limits=LIMITS), backends=[backend]) as sandbox:
            assert sandbox.call("serve", {"code": code}).out == expected


def test_everything_done_stands_in_the_log_of_effects(backend: NsBackend, tmp_path: Path) -> None:
    file = EffectFile(tmp_path / "effects.jsonl")
    with open_sandbox(POLICY, backends=[backend], log=file.chain("episode")) as sandbox:
        sandbox.call("bash", {"command": "echo hi"})
        sandbox.call("nothing", {"x": "\ud800"})
        branch = sandbox.fork()
        branch.call("bash", {"command": "exit 4"})
        branch.close()
        sandbox.put(Tree.of({"z": "z"}))
        sandbox.export(Wanted(patterns=("z",)))
        assert sandbox.log is not None
        head = sandbox.log.head
    file.close()
    report = check_effects(tmp_path / "effects.jsonl", anchors=[head])
    assert (report.problems, report.unisolated) == ((), ())
    text = (tmp_path / "effects.jsonl").read_text()
    for part in ('"denied"', '"put"', '"export"', '"backend":"ns"', '"isolation":"proved"', '"code":4', "episode/1"):
        assert part in text


def test_a_lost_fork_server_is_a_failure_of_the_sandbox_and_the_next_box_has_another() -> None:
    backend = NsBackend()
    try:
        sandbox = open_sandbox(POLICY, backends=[backend])
        (pid,) = backend.pids()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(SandboxFailure):
            sandbox.call("bash", {"command": "true"})
        sandbox.close()
        with open_sandbox(POLICY, backends=[backend]) as second:
            assert second.call("bash", {"command": "true"}).is_ok
    finally:
        backend.close()


def test_a_closed_sandbox_refuses_calls(backend: NsBackend) -> None:
    sandbox = open_sandbox(POLICY, backends=[backend])
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxFailure, match="closed"):
        sandbox.call("bash", {"command": "true"})


def test_equal_trees_have_equal_digests_and_a_bit_changes_them() -> None:
    one = Tree((Entry(path="b", data=b"1"), Entry(path="a", data=b"2")))
    assert one.digest == Tree.of({"a": "2", "b": "1"}).digest
    others = [
        Tree.of({"a": "2", "b": "2"}),
        Tree.of({"a": "2"}),
        Tree((Entry(path="a", data=b"2"), Entry(path="b", data=b"1", is_executable=True))),
        Tree((Entry(path="a", data=b"2"), Entry(path="b", data=b"1", kind=Kind.LINK))),
    ]
    assert len({one.digest, *(tree.digest for tree in others)}) == 5


def test_the_same_call_twice_gives_the_same_bytes(sandbox: Sandbox) -> None:
    """What differs between machines and moments is not visible."""
    command = "cd /proc; cat cpuinfo meminfo uptime loadavg version stat; hostname; id; env | sort; ls -a / /dev"
    assert sandbox.call("bash", {"command": command}).out == sandbox.call("bash", {"command": command}).out


def test_a_policy_that_requires_more_than_is_proved_is_refused(backend: NsBackend) -> None:
    policy = Policy(require=frozenset({Guarantee.KERNEL_SEPARATE}))
    with pytest.raises(SandboxUnavailable, match="`ns` lacks kernel_separate"):
        open_sandbox(policy, backends=[backend])


@pytest.mark.parametrize("target", ["/usr", "/bin", "/lib64/x", "/etc/x", "//etc", "//", "/opt/../etc", "/opt/\ud800"])
def test_a_mount_that_no_box_can_have_is_refused(target: str) -> None:
    with pytest.raises(ArgumentError, match="mount: "):
        Mount(source="/srv", target=target)


@pytest.mark.parametrize("later", ["/opt/x/y", "/opt/x", "/opt"])
def test_a_mount_that_hides_another_is_refused(later: str) -> None:
    mounts = (Mount(source="/srv", target="/opt/x/y"), Mount(source="/var", target=later))
    with pytest.raises(ArgumentError, match=f"/var at {later} would hide /srv at /opt/x/y"):
        Policy(mounts=mounts)
    assert Policy(mounts=(*mounts[1:], Mount(source="/srv", target="/opt/x/y/z"))).mounts[0].target == later


def test_a_mount_of_what_is_no_folder_is_a_failure_that_names_it(backend: NsBackend, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "nothing"):
        policy = Policy(mounts=(Mount(source=f"{tmp_path}/{name}", target="/opt/x"),))
        with pytest.raises(SandboxFailure, match=f"the source {tmp_path}/{name} is no folder"):
            open_sandbox(policy, backends=[backend])


@pytest.mark.parametrize(("name", "value"), [("", "b"), ("A=B", "c"), ("A", "b\0"), ("A", "\ud800"), ("A\0", "b")])
def test_a_variable_that_no_program_can_be_given_is_refused(name: str, value: str) -> None:
    with pytest.raises(ArgumentError, match="command: a"):
        Command(argv=("/bin/true",), env=((name, value),))


def test_a_call_that_descriptors_do_not_suffice_for_leaves_nothing_behind(backend: NsBackend) -> None:
    """Wherever they run out: neither a descriptor here nor a process there, and the next call is made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = Command(argv=("/bin/true",), limits=LIMITS)
    box = backend.open(BoxPolicy(base=Tree(), limits=LIMITS))
    assert box.run(command).code == 0
    taken = [os.dup(0)]
    while taken[-1] < max(open_now()) - 1:  # the listing has the last itself
        taken.append(os.dup(0))
    before, held = descriptors(), backend.state()[0]["processes"]
    failed = 0
    for room in range(1, 13):
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + room, hard))
        try:
            box.run(command)
        except (OSError, SandboxFailure):
            failed += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert descriptors() == before
        assert backend.state()[0]["processes"] == held
    assert failed >= 8  # a source, six ends of pipes, and what tells the end
    assert box.run(command).code == 0
    box.close()
    for handle in taken:
        os.close(handle)


def test_a_box_of_a_process_that_has_many_files_open_works(backend: NsBackend) -> None:
    """`select` takes no descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    taken = [os.dup(0)]
    try:
        while taken[-1] < 1100:
            taken.append(os.dup(0))
        box = backend.open(BoxPolicy(base=Tree.of({"a.txt": "a"}), limits=LIMITS))
        box.write(Tree.of({"b.txt": "b"}))
        assert box.run(Command(argv=("/bin/cat", "a.txt", "b.txt"), limits=LIMITS)).out == b"ab"
        assert box.read(Wanted(patterns=("*",))).tree.files == {"a.txt": b"a", "b.txt": b"b"}
        box.close()
    finally:
        for handle in taken:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors() -> int:
    return len(open_now())


def open_now() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def test_an_unknown_backend_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean `bwrap`"):
        open_sandbox(POLICY, backends=["bwarp"])


def test_a_warm_command_runs_in_the_fork_servers_interpreter_and_behaves_like_a_cold_one() -> None:
    packages = str(Path(pytest.__file__).parents[1])
    mounts = (Mount(source=packages, target="/opt/packages"),)
    argv = ("/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_sum.py")
    env = (("PYTHONPATH", "/opt/packages"), ("PYTHONDONTWRITEBYTECODE", "1"))
    tools = (
        RunTool(name="warm", argv=argv, env=env, is_warm=True),
        RunTool(name="cold", argv=argv, env=env),
    )
    base = Tree.of({"test_sum.py": "def test_good():\n    assert 1\n\n\ndef test_bad():\n    assert sum([1]) == 2\n"})
    preload = ("pytest", "_pytest.assertion.rewrite")
    backend = NsBackend(interpreter="/usr/bin/python3", preload=preload, path=("/opt/packages",), mounts=mounts)
    try:
        policy = Policy(base=base, tools=tools, limits=LIMITS)
        with open_sandbox(policy, backends=[backend]) as sandbox:
            results = {name: sandbox.call(name) for name in ("cold", "warm")}
        assert {result.code for result in results.values()} == {1}, results
        assert all(b"1 failed, 1 passed" in result.out for result in results.values())
        assert results["warm"].cpu_s < results["cold"].cpu_s
    finally:
        backend.close()
