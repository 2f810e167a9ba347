"""Conformance of a sandbox back-end: what it proves, what its results say, and that boxes do not touch each other."""

from collections.abc import Callable
from dataclasses import replace

from kifu.errors import KifuError
from kifu.sandbox import Backend, Box, BoxPolicy, Command, Denied, Entry, Guarantee, Kind, Limits, Reason, Tree, Wanted

ALL = Wanted(patterns=("**",))
_LIMITS = Limits(wall_s=30.0)


class SandboxCheckError(KifuError, AssertionError):
    """A back-end breaks its contract."""


def check_sandbox(backend: Backend, *, shell: str = "/bin/sh") -> frozenset[Guarantee]:
    """Check a back-end; raise on the first broken rule.

    Args:
        backend: to check; it must prove at least one guarantee.
        shell: a POSIX shell in its boxes.

    Returns:
        What it proved.
    """
    proof = backend.prove()
    _must(not proof.problem, f"cannot start: {proof.problem}. {proof.remedy}")
    _must(bool(proof.held), "proves nothing")
    _must(backend.prove() == proof, "proves something else when asked again")
    for check in _CHECKS:
        box = backend.open(BoxPolicy(base=Tree.of({"base.txt": "base", "d/x.txt": "x"}), limits=_LIMITS))
        try:
            check(box, lambda text, limits=_LIMITS: Command(argv=(shell, "-c", text), limits=limits))
        finally:
            box.close()
            box.close()
    return proof.held


Sh = Callable[..., Command]


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise SandboxCheckError(f"sandbox: {what}")


def _files(box: Box) -> dict[str, bytes]:
    return box.read(ALL).tree.files


def _results_say_how_a_call_ended(box: Box, sh: Sh) -> None:
    done = box.run(sh("printf out; printf err >&2; exit 3"))
    _must((done.reason, done.code, done.out, done.err) == (Reason.EXIT, 3, b"out", b"err"), f"exit 3 came as {done}")
    late = box.run(sh("sleep 20", replace(_LIMITS, wall_s=0.2)))
    _must((late.reason, late.code) == (Reason.TIMEOUT, None), f"a call out of time came as {late.reason} {late.code}")
    long = box.run(sh("yes", replace(_LIMITS, output_kill_bytes=100_000, output_keep_bytes=1000)))
    _must(long.reason is Reason.OUTPUT_LIMIT and len(long.out) == 1000, f"endless output came as {long.reason}")
    none = box.run(Command(argv=("/no/such/program",), limits=_LIMITS))
    _must(none.reason is not Reason.EXIT or none.code == 127, f"a program that is not there came as {none}")


def _input_reaches_a_command(box: Box, sh: Sh) -> None:
    done = box.run(replace(sh('cat; printf %s "$NAME"'), stdin=b"given", env=(("NAME", "value"),)))
    _must(done.out == b"givenvalue", f"standard input and a variable came as {done.out!r}")
    below = box.run(replace(sh("cat x.txt"), cwd="d"))
    _must(below.out == b"x", f"a command in the folder d found {below.out!r} {below.message}")


def _files_are_the_state(box: Box, sh: Sh) -> None:
    _must(_files(box) == {"base.txt": b"base", "d/x.txt": b"x"}, f"a new box holds {_files(box)}")
    box.run(sh("echo new > new.txt; rm d/x.txt; echo more >> base.txt; chmod +x base.txt"))
    _must(_files(box) == {"base.txt": b"basemore\n", "new.txt": b"new\n"}, f"after changes it holds {_files(box)}")
    modes = {item.path: item.is_executable for item in box.read(ALL).tree.entries}
    _must(modes == {"base.txt": True, "new.txt": False}, f"execute bits are {modes}")
    box.write(Tree((Entry(path="new.txt", kind=Kind.GONE), Entry(path="put/p.txt", data=b"put"))))
    seen = box.run(sh("cat put/p.txt; ls; echo edit >> put/p.txt && echo edited"))
    _must(seen.out == b"putbase.txt\nd\nput\nedited\n", f"after a write a command saw {seen.out!r} {seen.err!r}")


def _branches_are_apart(box: Box, sh: Sh) -> None:
    box.run(sh("echo one > shared.txt"))
    branch = box.branch()
    try:
        box.run(sh("echo mine > shared.txt; rm base.txt"))
        branch.run(sh("echo theirs >> shared.txt; echo x > extra.txt"))
        _must(_files(box).get("shared.txt") == b"mine\n", "a branch changed the box it came from")
        expected = {"base.txt": b"base", "d/x.txt": b"x", "shared.txt": b"one\ntheirs\n", "extra.txt": b"x\n"}
        _must(_files(branch) == expected, f"a branch holds {_files(branch)}")
        middle = branch.branch()
        deeper = middle.branch()
        middle.close()
        branch.close()
        _must(_files(deeper) == expected, "a branch does not outlive the one it came from")
        deeper.close()
    finally:
        branch.close()


def _reading_has_caps(box: Box, sh: Sh) -> None:
    box.run(sh("for n in 1 2 3 4; do echo 12345678 > f$n; done; ln -s /etc/passwd link"))
    few = box.read(Wanted(patterns=("f*",), max_files=2))
    _must(len(few.tree.files) == 2 and not few.is_complete, f"two files at most gave {sorted(few.tree.files)}")
    small = box.read(Wanted(patterns=("f*",), max_bytes=20))
    _must(len(small.tree.files) == 2 and not small.is_complete, f"20 bytes at most gave {sorted(small.tree.files)}")
    links = box.read(Wanted(patterns=("link",)))
    _must(not links.tree.files and links.refused_count == 1, "a link was followed out of the box")
    try:
        box.run(sh("ln -s /tmp way"))
        box.write(Tree.of({"way/x": "x"}))
    except Denied:
        return
    raise SandboxCheckError("sandbox: a file was written through a link")


_CHECKS = (
    _results_say_how_a_call_ended,
    _input_reaches_a_command,
    _files_are_the_state,
    _branches_are_apart,
    _reading_has_caps,
)
