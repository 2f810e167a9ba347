"""Hundreds of snapshots one on top of the other: what a box shows is what the same commands leave without snapshots."""

import random
import statistics
import time
from collections.abc import Iterator

import pytest

from kifu.sandbox import Limits, NsBackend, Policy, Sandbox, Tree, Wanted, open_sandbox, shell
from kifu.sandbox.ns.sheets import MAX_SHEETS, MERGED_AT

BASE = Tree.of({"kept": "base", "gone": "base", "folder/a": "a", "folder/b": "b", "deep/er/c": "c"})
POLICY = Policy(base=BASE, tools=(shell(),), limits=Limits(wall_s=60.0))
LISTING = r"""
find . -mindepth 1 ! -type d -printf '%P %y %m %s %l\n' | LC_ALL=C sort
find . -mindepth 1 -type d -printf '%P %y %m\n' | LC_ALL=C sort
find . -type f -readable -exec sha256sum {} + | LC_ALL=C sort
stat -c '%Y' kept
python3 -c 'import os; print([name for name in os.listxattr("kept") if "overlay" not in name])'
"""


@pytest.fixture(scope="module")
def backend() -> Iterator[NsBackend]:
    made = NsBackend()
    yield made
    made.close()


def _do(sandbox: Sandbox, command: str) -> None:
    result = sandbox.call("bash", {"command": command})
    assert result.is_ok, result.text


def _listing(sandbox: Sandbox) -> str:
    result = sandbox.call("bash", {"command": LISTING})
    assert result.is_ok, result.text
    return result.out.decode("utf-8", "backslashreplace")


def test_three_hundred_snapshots_deep_every_one_can_be_gone_back_to_and_costs_what_the_first_did(
    backend: NsBackend,
) -> None:
    with open_sandbox(POLICY, backends=[backend]) as sandbox:
        snapshots, seconds = [], []
        for at in range(300):
            sandbox.put(Tree.of({f"f{at}": str(at), "kept": str(at)}))
            start = time.perf_counter()
            snapshots.append(sandbox.snapshot())
            seconds.append(time.perf_counter() - start)
        assert MAX_SHEETS < 300
        for at in (299, 150, MERGED_AT, MERGED_AT - 1, 0):
            sandbox.reset(snapshots[at])
            files = sandbox.export(Wanted(patterns=("**",), max_files=1000)).tree.files
            assert files == {
                **BASE.files,
                **{f"f{n}": str(n).encode() for n in range(at + 1)},
                "kept": str(at).encode(),
            }
        for snapshot in snapshots:
            snapshot.close()
    # The median of a late stretch: one snapshot in some fifty copies, all others are a mount.
    assert statistics.median(seconds[200:]) < 10 * statistics.median(seconds[:40])


def test_what_no_longer_has_a_user_is_given_back(backend: NsBackend) -> None:
    with open_sandbox(POLICY, backends=[backend]):
        pass
    before = _held(backend)
    with open_sandbox(POLICY, backends=[backend]) as sandbox:
        for at in range(3 * MERGED_AT):
            sandbox.put(Tree.of({"one": str(at)}))
            sandbox.snapshot().close()
        (during,) = backend.state()
        sheets = during["sheets"]
        assert isinstance(sheets, int)
        assert sheets <= MERGED_AT + 8
    assert _held(backend) == before


def _held(backend: NsBackend) -> list[tuple[object, ...]]:
    names = ("boxes", "layers", "sheets", "overlays", "folders", "handles", "processes")
    return [tuple(state[name] for name in names) for state in backend.state()]


ODD = (
    "rm gone",
    "rm -r folder; mkdir folder; echo new > folder/c",
    "rm -r folder; echo file > folder",
    "rm folder; mkdir folder; touch folder/d",
    "rm -r deep/er; ln -s ../kept deep/er",
    "rm deep/er; mkdir deep/er; echo c > deep/er/e",
    "mkfifo pipe; chmod 600 pipe; ln kept twice; ln kept thrice; echo more >> twice",
    "truncate -s 30M sparse; printf x | dd of=sparse bs=1 seek=20000000 conv=notrunc status=none",
    "mkdir shut; echo s > shut/s; chmod 0 shut/s; chmod 500 shut",
    "chmod 700 shut; chmod 600 shut/s; mv shut opened; chmod 0 opened/s",
    r"""printf n > "$(printf 'a\nb')"; printf u > "$(printf 'a\377b')" """,
    "touch -d @1000000 kept",
    "i=0; while [ $i -lt 300 ]; do mkdir dddddddddd && cd dddddddddd; i=$((i+1)); done; echo low > low",
    "mv dddddddddd elsewhere",
    "rm -r elsewhere/dddddddddd/dddddddddd; echo e > elsewhere/dddddddddd/f",
    'chmod 711 .; python3 -c \'import os; os.setxattr("kept", "user.mine", b"1")\'',
)


def test_odd_changes_between_snapshots_are_kept_when_sheets_become_one(backend: NsBackend) -> None:
    with open_sandbox(POLICY, backends=[backend]) as plain, open_sandbox(POLICY, backends=[backend]) as chained:
        for command in ODD:
            _do(plain, command)
            _do(chained, command)
            chained.snapshot().close()
        for at in range(MERGED_AT):
            chained.put(Tree.of({"other": str(at)}))
            chained.snapshot().close()
        plain.put(Tree.of({"other": str(MERGED_AT - 1)}))
        assert _listing(chained) == _listing(plain)


def test_names_drawn_at_random_end_the_same_with_and_without_snapshots(backend: NsBackend) -> None:
    rng = random.Random(4)
    names = ["a", "b", "a/x", "b/x", "a/x/y", "b/y"]
    with open_sandbox(POLICY, backends=[backend]) as plain, open_sandbox(POLICY, backends=[backend]) as chained:
        for _ in range(2 * MERGED_AT):
            one, other = rng.sample(names, 2)
            commands = (f"rm -rf {one}", f"mkdir -p {one}", f"echo {rng.random()} > {one}", f"mv -T {one} {other}")
            command = f"({rng.choice(commands)}) 2>/dev/null; true"
            _do(plain, command)
            _do(chained, command)
            chained.snapshot().close()
        assert _listing(chained) == _listing(plain)


def test_a_sparse_file_and_many_names_of_one_file_take_no_more_room_than_before(backend: NsBackend) -> None:
    with open_sandbox(POLICY, backends=[backend]) as sandbox:
        _do(sandbox, "truncate -s 30M s; head -c 1000000 /dev/zero > m; for n in $(seq 100); do ln m m$n; done")
        for at in range(MERGED_AT + 1):
            sandbox.put(Tree.of({"one": str(at)}))
            sandbox.snapshot().close()
        _do(sandbox, "[ $(stat -c %h m) = 101 ] && [ $(du -k . | tail -1 | cut -f1) -lt 2000 ]")
