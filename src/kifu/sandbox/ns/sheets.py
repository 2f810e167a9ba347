"""Boxes as stacks of sheets: a snapshot or a branch puts one more sheet on top. Standard library only.

A sheet is a memory file system with a folder ``u`` of files and a folder ``w`` for the kernel. A box has one sheet it
writes to and any number it only reads; an overlay shows them as one folder. Nothing here takes time in proportion to
what the sheets hold, but for one thing: when a box stands on `MERGED_AT` sheets of its own, they are copied into one.
"""

# Pathlib would make every process that is forked here larger.
# ruff: noqa: PTH102, PTH106, PTH208

import os

from kifu.sandbox.ns.kernel import MS_NODEV, MS_NOSUID, detach, mount
from kifu.sandbox.ns.merging import merge

MAX_SHEETS = 256
"""Of one box; the kernel takes their names in one page."""
MERGED_AT = 48
"""Sheets a box has written and only reads, before they become one."""
SMALLEST = 1 << 16


class Sheet:
    """One memory file system and how many boxes stand on it."""

    __slots__ = ("is_layer", "path", "users")

    def __init__(self, path: str, *, is_layer: bool) -> None:
        self.path = path
        self.is_layer = is_layer
        self.users = 0

    def used(self) -> tuple[int, int]:
        """Bytes and inodes in use."""
        found = os.statvfs(self.path)
        return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree


class Box:
    """Sheets to read, top first, and the one to write to, made when it is first needed."""

    __slots__ = ("disk", "lowers", "upper")

    def __init__(self, lowers: list[Sheet], disk: tuple[int, int] | None) -> None:
        self.lowers = lowers
        self.upper: Sheet | None = None
        self.disk = disk
        """Bytes and inodes all its own sheets may take; None for no limit."""


class Sheets:
    """All boxes and layers of a fork server."""

    def __init__(self) -> None:
        self.boxes: dict[int, Box] = {}
        self.layers: dict[int, Sheet] = {}
        self._count = 0

    def add_layer(self, number: int, *, size: int, inodes: int) -> str:
        """Make room for a layer; the folder to fill."""
        sheet = self._sheet((size, inodes), is_layer=True)
        sheet.users = 1
        self.layers[number] = sheet
        return f"{sheet.path}/u"

    def drop_layer(self, number: int) -> None:
        """Forget a layer; it stays as long as boxes stand on it."""
        self._release(self.layers.pop(number))

    def open(self, number: int, *, layers: list[int], disk: tuple[int, int] | None) -> None:
        """Make a box on layers, top first."""
        self._add(number, [self.layers[layer] for layer in layers], disk)

    def branch(self, number: int, *, of: int) -> int:
        """Make a box that begins as another one stands now; how many sheets it reads."""
        box = self.boxes[of]
        if box.upper is not None:
            detach(f"{box.upper.path}/m")
            if os.listdir(f"{box.upper.path}/u"):
                if len(box.lowers) >= MAX_SHEETS:
                    self._mount(box)
                    raise OSError(7, f"a box of {MAX_SHEETS} sheets takes no further snapshot")
                box.lowers = self._merged([box.upper, *box.lowers])
            else:
                self._release(box.upper)
            box.upper = None
        self._add(number, list(box.lowers), box.disk)
        return len(box.lowers)

    def ready(self, number: int) -> str:
        """The folder that shows the whole box, to read and to write."""
        box = self.boxes[number]
        if box.upper is None:
            box.upper = self._sheet(_rest(box), is_layer=False)
            box.upper.users = 1
            self._mount(box)
        return f"{box.upper.path}/m"

    def used(self, number: int) -> tuple[int, int]:
        """Bytes and inodes a box has written."""
        box = self.boxes[number]
        sheets = [sheet for sheet in [*box.lowers, box.upper] if sheet is not None and not sheet.is_layer]
        found = [sheet.used() for sheet in sheets]
        return sum(size for size, _ in found), sum(inodes for _, inodes in found)

    def drop(self, number: int) -> None:
        """Give up a box, and every sheet no other box stands on."""
        box = self.boxes.pop(number)
        if box.upper is not None:
            detach(f"{box.upper.path}/m")
            self._release(box.upper)
        for sheet in box.lowers:
            self._release(sheet)

    def _add(self, number: int, lowers: list[Sheet], disk: tuple[int, int] | None) -> None:
        for sheet in lowers:
            sheet.users += 1
        self.boxes[number] = Box(lowers, disk)

    def _sheet(self, room: tuple[int, int] | None, *, is_layer: bool) -> Sheet:
        self._count += 1
        path = f"/b/{self._count}"
        os.mkdir(path)
        quota = f"size={room[0]},nr_inodes={room[1]}," if room else ""
        mount("sheet", path, kind="tmpfs", flags=MS_NOSUID | MS_NODEV, options=f"{quota}mode=700")
        for folder in "uwm":
            os.mkdir(f"{path}/{folder}")
        return Sheet(path, is_layer=is_layer)

    def _merged(self, lowers: list[Sheet]) -> list[Sheet]:
        """The same to read, in fewer sheets where there were many; as they were if that does not work out."""
        own = [sheet for sheet in lowers if not sheet.is_layer]
        if len(own) < MERGED_AT:
            return lowers
        used = [sheet.used() for sheet in own]
        room = sum(size for size, _ in used) + SMALLEST, sum(inodes for _, inodes in used) + 64
        made = self._sheet(room, is_layer=False)
        made.users = 1
        pid = os.fork()
        if pid == 0:
            try:
                merge([sheet.path for sheet in reversed(own)], made.path)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if status:
            self._release(made)
            return lowers
        for sheet in own:
            self._release(sheet)
        return [made, *(sheet for sheet in lowers if sheet.is_layer)]

    def _mount(self, box: Box) -> None:
        if box.upper is None:
            raise OSError(22, "a box without a sheet to write to")
        lowers = ":".join(f"{sheet.path[3:]}/u" for sheet in box.lowers)
        path = box.upper.path
        options = f"lowerdir={lowers}{':' if lowers else ''}/empty,upperdir={path}/u,workdir={path}/w,userxattr"
        os.chdir("/b")
        mount("box", f"{path}/m", kind="overlay", flags=MS_NOSUID | MS_NODEV, options=options)
        os.chdir("/")

    def _release(self, sheet: Sheet) -> None:
        sheet.users -= 1
        if sheet.users == 0:
            detach(sheet.path)
            os.rmdir(sheet.path)


def _rest(box: Box) -> tuple[int, int] | None:
    """What a box may still write: what its frozen sheets hold counts."""
    if box.disk is None:
        return None
    found = [sheet.used() for sheet in box.lowers if not sheet.is_layer]
    size = max(SMALLEST, box.disk[0] - sum(size for size, _ in found))
    return size, max(16, box.disk[1] - sum(inodes for _, inodes in found))
