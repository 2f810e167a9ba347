"""The effect log says before and after every action what it is, and no change of it goes unseen."""

import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kifu.errors import ArgumentError, StorageError
from kifu.sandbox.effects import LONG_TEXT, EffectFile, EffectHead, EffectLog, ForwardKey, shortened
from kifu.sandbox.effects_check import check_effects

KEY = ForwardKey(key=bytes(range(32)))


def _episode(log: EffectLog, *, calls: int = 3) -> None:
    for number in range(calls):
        pending = log.begin("exec", tool="sh", arguments={"cmd": f"echo {number}"}, facts={"backend": "ns"})
        log.end(pending, reason="exit", facts={"rc": 0, "out_sha256": f"{number:064x}"}, measured={"wall_s": 0.1})


def _written(path: Path, *, key: ForwardKey | None = None) -> tuple[dict[str, EffectHead], str]:
    """Two episodes and a branch of the first; their heads and the file's."""
    file = EffectFile(path, key=key)
    first, second = file.chain("e0"), file.chain("e1")
    _episode(first, calls=2)
    _episode(second)
    branch = first.child()
    _episode(branch, calls=1)
    _episode(first, calls=1)
    file.close()
    heads = {head.chain: head for head in (first.head, second.head, branch.head)}
    return heads, file.seal


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _resealed(lines: list[dict[str, Any]]) -> bytes:
    """The file an attacker without the key writes: every digest, seal and link made anew."""
    heads: dict[str, list[str]] = {}
    renamed: dict[str, str] = {}
    follows, out = "0" * 64, []
    for line in lines:
        content = dict(line["content"])
        own = heads.setdefault(content["chain"], [])
        parent = content.get("parent")
        start = heads[parent["chain"]][parent["count"] - 1] if parent else "0" * 64
        content |= {"previous": own[-1] if own else start, "seq": len(own)}
        if "of" in content["facts"]:
            content["facts"] = {**content["facts"], "of": renamed.get(content["facts"]["of"], "")}
        digest = hashlib.sha256(_canonical(content)).hexdigest()
        renamed[line["digest"]] = digest
        own.append(digest)
        measured = _canonical(line["measured"])
        seal = hashlib.sha256(b"\n".join((digest.encode(), follows.encode(), measured))).hexdigest()
        out.append(_canonical({**line, "content": content, "digest": digest, "follows": follows, "seal": seal}))
        follows = seal
    return b"".join(line + b"\n" for line in out)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_an_untouched_log_is_sound_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    heads, seal = _written(path, key=KEY)

    report = check_effects(path, anchors=heads.values(), seal=seal, key=KEY)

    assert report.problems == ()
    assert report.lines == 2 * (2 + 3 + 1 + 1)
    assert report.counts == {"exec/sh": 7}
    assert report.reasons == {"exit": 7}
    assert report.heads == heads
    assert report.interrupted == ()


def test_the_chain_can_be_checked_without_this_library(tmp_path: Path) -> None:
    """Digests, links, seals and macs as the module's docstring describes them, computed here once more."""
    path = tmp_path / "effects.jsonl"
    _written(path, key=KEY)
    follows, key, last = "0" * 64, KEY.key, {"e0": "0" * 64, "e1": "0" * 64}
    for line in _lines(path):
        content = line["content"]
        if content["chain"] == "e0/1" and content["seq"] == 0:
            last["e0/1"] = last["e0"]
        assert content["previous"] == last[content["chain"]]
        assert line["digest"] == hashlib.sha256(_canonical(content)).hexdigest()
        sealed = "\n".join((line["digest"], follows, _canonical(line["measured"]).decode()))
        assert line["seal"] == hashlib.sha256(sealed.encode()).hexdigest()
        assert line["mac"] == hmac.new(key, line["seal"].encode(), hashlib.sha256).hexdigest()
        key = hashlib.sha256(b"kifu effect key" + key).digest()
        last[content["chain"]], follows = line["digest"], line["seal"]


def test_the_head_of_an_episode_is_a_function_of_its_actions_alone(tmp_path: Path) -> None:
    """Other times, another file around it, another order of lines: the same head."""
    one, two = EffectFile(tmp_path / "a.jsonl"), EffectFile(tmp_path / "b.jsonl", key=KEY)
    alone, among, other = one.chain("e"), two.chain("e"), two.chain("x")
    _episode(other)
    pending = among.begin("exec", tool="sh", arguments={"cmd": "echo 0"}, facts={"backend": "ns"})
    _episode(other)
    among.end(pending, reason="exit", facts={"rc": 0, "out_sha256": "0" * 64}, measured={"wall_s": 77.0})
    _episode(alone, calls=1)

    assert alone.head == among.head
    one.close()
    two.close()


def _edit(lines: list[dict[str, Any]]) -> None:
    lines[3]["content"]["facts"]["rc"] = 1


def _edit_time(lines: list[dict[str, Any]]) -> None:
    lines[3]["measured"]["wall_s"] = 0.0


def _delete(lines: list[dict[str, Any]]) -> None:
    del lines[4:6]


def _swap(lines: list[dict[str, Any]]) -> None:
    lines[1], lines[5] = lines[5], lines[1]


def _insert(lines: list[dict[str, Any]]) -> None:
    lines.insert(4, lines[0])


def _cut(lines: list[dict[str, Any]]) -> None:
    del lines[-2:]


def _cut_all(lines: list[dict[str, Any]]) -> None:
    lines.clear()


def _edit_digest(lines: list[dict[str, Any]]) -> None:
    lines[2]["content"]["tool"] = "cat"
    lines[2]["digest"] = hashlib.sha256(_canonical(lines[2]["content"])).hexdigest()


@pytest.mark.parametrize("attack", [_edit, _edit_time, _edit_digest, _delete, _swap, _insert])
def test_attack_on_lines_is_found_from_the_file_alone(
    tmp_path: Path, attack: Callable[[list[dict[str, Any]]], None]
) -> None:
    path = tmp_path / "effects.jsonl"
    _written(path)
    lines = _lines(path)
    attack(lines)
    path.write_bytes(b"".join(_canonical(line) + b"\n" for line in lines))

    assert check_effects(path).problems


@pytest.mark.parametrize("attack", [_edit, _edit_time, _delete, _swap, _insert])
def test_attack_that_rewrites_every_digest_is_found_with_the_first_key(
    tmp_path: Path, attack: Callable[[list[dict[str, Any]]], None]
) -> None:
    path = tmp_path / "effects.jsonl"
    _written(path, key=KEY)
    lines = _lines(path)
    attack(lines)
    path.write_bytes(_resealed(lines))

    assert any("mac" in problem for problem in check_effects(path, key=KEY).problems)


@pytest.mark.parametrize("attack", [_edit, _delete, _swap, _insert, _cut, _cut_all])
def test_attack_that_rewrites_every_digest_is_found_by_the_heads_in_the_records(
    tmp_path: Path, attack: Callable[[list[dict[str, Any]]], None]
) -> None:
    path = tmp_path / "effects.jsonl"
    heads, _ = _written(path)
    lines = _lines(path)
    attack(lines)
    path.write_bytes(_resealed(lines))

    assert check_effects(path, anchors=heads.values()).problems


@pytest.mark.parametrize("attack", [_edit, _edit_time, _delete, _swap, _insert, _cut, _cut_all])
def test_attack_that_rewrites_every_digest_is_found_by_the_seal_of_the_run(
    tmp_path: Path, attack: Callable[[list[dict[str, Any]]], None]
) -> None:
    path = tmp_path / "effects.jsonl"
    _, seal = _written(path)
    lines = _lines(path)
    attack(lines)
    path.write_bytes(_resealed(lines))

    assert check_effects(path, seal=seal).problems


def test_control_a_log_cut_at_a_line_is_sound_in_itself(tmp_path: Path) -> None:
    """Why heads are noted outside: nothing in a shorter file says that there was more."""
    path = tmp_path / "effects.jsonl"
    _written(path)
    lines = _lines(path)
    _cut(lines)
    path.write_bytes(b"".join(_canonical(line) + b"\n" for line in lines))

    assert check_effects(path).problems == ()


def test_attack_with_a_later_key_cannot_make_an_earlier_mac(tmp_path: Path) -> None:
    """The thief of the present key reseals everything with what can be computed from it."""
    path = tmp_path / "effects.jsonl"
    file = EffectFile(path, key=KEY)
    _episode(file.chain("e"))
    stolen = file.key
    file.close()
    assert stolen is not None
    assert stolen.index == 6
    lines = _lines(path)
    _edit(lines)
    forged = [json.loads(line) for line in _resealed(lines).splitlines()]
    key = stolen
    for line in forged:
        line["mac"] = key.mac(line["seal"])
        key = key.next()
    path.write_bytes(b"".join(_canonical(line) + b"\n" for line in forged))

    problems = check_effects(path, key=KEY).problems
    assert sum("mac" in problem for problem in problems) == 6


def test_every_byte_of_a_line_is_covered(tmp_path: Path) -> None:
    """Each byte of one line replaced in turn, with the key at hand."""
    path = tmp_path / "effects.jsonl"
    heads, seal = _written(path, key=KEY)
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    stop = whole.index(b"\n", start)
    for at in range(start, stop):
        altered = bytearray(whole)
        altered[at] ^= 1
        path.write_bytes(altered)
        assert check_effects(path, anchors=heads.values(), seal=seal, key=KEY).problems, altered[start:stop]


def test_a_killed_writer_leaves_the_beginning_of_what_it_was_doing(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from kifu.sandbox.effects import EffectFile\n"
        "log = EffectFile(Path(sys.argv[1])).chain('e')\n"
        "log.begin('exec', tool='sh', arguments={'cmd': 'rm -rf build'})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with path.open("ab") as handle:
        handle.write(b'{"content":{"chain":"e","seq":1')

    report = check_effects(path)
    assert report.problems == ()
    assert report.interrupted == ("e#0 exec/sh",)
    assert report.torn_bytes == 31

    file = EffectFile(path)
    file.chain("again").note("reset")
    file.close()
    after = check_effects(path)
    assert (after.problems, after.torn_bytes, after.lines) == ((), 0, 2)


def test_going_on_with_a_key_finds_a_cut_tail(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    file = EffectFile(path, key=KEY)
    _episode(file.chain("e"))
    key = file.key
    file.close()
    again = EffectFile(path, key=KEY)
    _episode(again.chain("f"))
    again.close()
    assert check_effects(path, key=KEY).problems == ()
    path.write_bytes(b"".join(line + b"\n" for line in path.read_bytes().splitlines()[:4]))

    with pytest.raises(StorageError, match="holds 4 lines, its key has sealed 6"):
        EffectFile(path, key=key)


def test_threads_write_whole_lines_in_one_order(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    file = EffectFile(path, key=KEY)
    logs = [file.chain(f"e{number}") for number in range(4)]
    threads = [threading.Thread(target=_episode, args=(log,), kwargs={"calls": 50}) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()

    report = check_effects(path, anchors=[log.head for log in logs], seal=file.seal, key=KEY)
    assert report.problems == ()
    assert report.lines == 400


def test_a_branch_leaves_where_it_says_and_its_parent_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    file = EffectFile(path)
    parent = file.chain("p")
    _episode(parent, calls=1)
    there = parent.head
    _episode(parent, calls=2)
    child = parent.child("c", at=there)
    assert (child.head.digest, child.head.count) == (there.digest, 0)
    _episode(child, calls=1)
    file.close()

    first = next(line["content"] for line in _lines(path) if line["content"]["chain"] == "c")
    assert first["previous"] == there.digest
    assert first["parent"] == {"chain": "p", "count": 2}
    assert check_effects(path, anchors=[parent.head, child.head]).problems == ()


def test_a_name_serves_one_chain_also_after_the_file_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    file = EffectFile(path)
    file.chain("e").note("reset")
    with pytest.raises(ArgumentError, match="chain 'e' exists already"):
        file.chain("e")
    file.close()
    again = EffectFile(path)
    with pytest.raises(ArgumentError, match="chain 'e' exists already"):
        again.chain("e")
    again.close()
    with pytest.raises(StorageError, match="closed"):
        again.chain("f").note("reset")


def test_a_long_text_stands_there_as_its_digest() -> None:
    text = "ü" * (LONG_TEXT + 1)
    found = shortened({"files": [{"text": text}], "n": 1})
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert found == {"files": [{"text": {"begins": "ü" * 256, "characters": 4097, "sha256": digest}}], "n": 1}
    assert shortened("ü" * LONG_TEXT) == "ü" * LONG_TEXT


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "effects.jsonl"
    file = EffectFile(path)
    log = file.chain("e")
    _episode(log, calls=1)
    real = os.write

    def full(handle: int, data: bytes) -> int:
        real(handle, bytes(data)[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="no space left"):
            log.note("reset")
    _episode(log, calls=1)
    file.close()
    report = check_effects(path, anchors=[log.head], seal=file.seal)
    assert (report.problems, report.lines) == ((), 4)
