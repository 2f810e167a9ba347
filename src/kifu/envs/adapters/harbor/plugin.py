"""The class that Harbor loads: ``harbor run --env kifu.envs.adapters.harbor.plugin:KifuEnvironment``.

It runs in Harbor's Python (3.12 or later), where kifu must be installed too. Everything it does is `HarborBox`'s; here
are only Harbor's names for it. The class is made when it is asked for, since Harbor is no dependency of kifu.
"""

import asyncio
import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from kifu.envs.adapters.harbor.box import LIMITS, HarborBox, Image, below, image_of
from kifu.envs.adapters.harbor.folder import image_needs
from kifu.envs.repositories.trees import read_tree
from kifu.sandbox import Entry, Reason, Tree

_KEPT_DISK = 2 << 30
"""Most that a box may hold: it is memory."""
_DAY_S = 24 * 3600


def __getattr__(name: str) -> type[Any]:
    if name == "KifuEnvironment":
        return environment_class()
    raise AttributeError(name)


@cache
def environment_class() -> type[Any]:
    """Harbor's contract kept by `HarborBox`.

    Raises:
        ImportError: Harbor is not installed in this Python.
    """
    base = importlib.import_module("harbor.environments.base")
    capabilities = importlib.import_module("harbor.environments.capabilities").EnvironmentCapabilities
    parts = {"_result": base.ExecResult, "_features": capabilities(disable_internet=True), "__module__": __name__}
    return type("KifuEnvironment", (BoxedTrial, base.BaseEnvironment), parts)


class BoxedTrial:
    """A task in a sandboxed box of this machine, without Docker and without network: the methods Harbor calls."""

    environment_dir: Path
    environment_name: str
    task_env_config: Any
    """Harbor's ``[environment]`` of the task."""
    _result: Any
    _features: Any
    _effective_storage_mb: int | None
    _effective_memory_mb: int | None
    _box: HarborBox | None = None
    _image: Image = Image()

    @staticmethod
    def type() -> str:
        """Its name in results."""
        return "kifu-ns"

    @property
    def capabilities(self) -> Any:  # noqa: ANN401  # Harbor's own type
        """No network, whatever the task says: a task that may use one has to do without."""
        return self._features

    def _validate_definition(self) -> None:
        """Refuse a task whose image holds what no box has."""
        path = Path(self.environment_dir) / "Dockerfile"
        text = path.read_text() if path.is_file() else ""
        needs = image_needs(text, docker_image=self.task_env_config.docker_image)
        if needs:
            raise ValueError(f"{self.environment_name} needs an image, and kifu-ns builds none: {'; '.join(needs)}")
        made = image_of(text)
        self._image = Image(workdir=self.task_env_config.workdir or made.workdir, folders=made.folders)

    async def start(self, force_build: bool) -> None:
        """Open the box; there is nothing to build."""
        memory = (self._effective_memory_mb or 2048) << 20
        limits = replace(
            LIMITS,
            disk_bytes=min((self._effective_storage_mb or 512) << 20, _KEPT_DISK),
            mem_total_bytes=memory,
            mem_process_bytes=max(memory, 64 << 20),
            wall_s=_DAY_S,
            cpu_s=_DAY_S,
        )
        self._box = await asyncio.to_thread(HarborBox, image=self._image, limits=limits)

    async def stop(self, delete: bool) -> None:
        """Give the box up."""
        if self._box is not None:
            await asyncio.to_thread(self._box.close)
            self._box = None

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        *,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> Any:  # noqa: ANN401  # Harbor's own type
        """Run a command as the box's only user, whatever user is asked for.

        Raises:
            RuntimeError: it took longer than it may.
        """
        given = self._merge_env(env)  # type: ignore[attr-defined]  # of Harbor's base class
        ran = await asyncio.to_thread(self._open.run, command, cwd=cwd, env=given, timeout_s=timeout_sec)
        if ran.reason is Reason.TIMEOUT:
            raise RuntimeError(f"command timed out after {timeout_sec} seconds")
        code = ran.code if ran.code is not None else 128 + (ran.signal or 9)
        note = "" if ran.reason is Reason.EXIT else f"\n[kifu: the command ended by {ran.reason}]"
        out, err = ran.out.decode("utf-8", "replace"), ran.err.decode("utf-8", "replace")
        return self._result(stdout=out, stderr=err + note, return_code=code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Put one file in."""
        folder, _, name = target_path.rpartition("/")
        item = await asyncio.to_thread(_entry, Path(source_path), name)
        await asyncio.to_thread(self._open.put, folder, Tree((item,)))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Put a folder in; a link in it is refused."""
        files = await asyncio.to_thread(read_tree, Path(source_dir))
        items = [Entry(path=path, data=file.data, is_executable=file.executable) for path, file in files.items()]
        await asyncio.to_thread(self._open.put, target_dir, Tree(tuple(items)))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Take one file out.

        Raises:
            FileNotFoundError: there is no regular file of that name.
        """
        data = await asyncio.to_thread(self._open.take_file, source_path)
        if data is None:
            raise FileNotFoundError(source_path)
        target = Path(target_path)
        await asyncio.to_thread(_lay, target.parent, Tree.of({target.name: data}))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Take a folder's regular files out."""
        tree = await asyncio.to_thread(self._open.take, source_dir)
        await asyncio.to_thread(_lay, Path(target_dir), tree)

    @property
    def _open(self) -> HarborBox:
        if self._box is None:
            raise RuntimeError("kifu-ns: the environment is not started")
        return self._box

    # The names at the root are links, which nobody can remove: Harbor's commands get the folders they lead to.
    def _reset_dirs_command(self, **dirs: Sequence[str | PurePath] | None) -> str:
        real = {name: _real(given) for name, given in dirs.items()}
        return str(super()._reset_dirs_command(**real))  # type: ignore[misc]

    def _ensure_dirs_command(self, dirs: Sequence[str | PurePath], *, chmod: bool = True) -> str:
        return str(super()._ensure_dirs_command(_real(dirs), chmod=chmod))  # type: ignore[misc]

    def _empty_dirs_command(self, dirs: Sequence[str | PurePath], *, chmod: bool = True) -> str:
        return str(super()._empty_dirs_command(_real(dirs), chmod=chmod))  # type: ignore[misc]


def _real(paths: Sequence[str | PurePath] | None) -> list[str] | None:
    return None if paths is None else [f"/box/{below(str(path))}" for path in paths]


def _entry(path: Path, name: str) -> Entry:
    return Entry(path=name, data=path.read_bytes(), is_executable=bool(path.stat().st_mode & 0o100))


def _lay(folder: Path, tree: Tree) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for item in tree.entries:
        path = folder / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item.data)
        path.chmod(0o755 if item.is_executable else 0o644)
