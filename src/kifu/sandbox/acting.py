"""Carrying out one checked call in a box."""

from collections.abc import Mapping
from typing import assert_never

from kifu.sandbox.contract import Box, Command, Denied, Limits, Link, Ran, Reason, Wanted
from kifu.sandbox.patches import PatchError, patched, read_patch
from kifu.sandbox.policy import CallResult
from kifu.sandbox.tools import ListTool, PatchTool, ReadTool, RunTool, Tool, WriteTool, fill
from kifu.sandbox.tree import Tree

Values = Mapping[str, tuple[str, ...]]

_SPEAKS = {
    Reason.TIMEOUT: "The call took too long and was stopped.",
    Reason.OUTPUT_LIMIT: "The call wrote too much and was stopped.",
    Reason.MEM_LIMIT: "The call used too much memory and was stopped.",
    Reason.SETUP_FAILED: "The call could not be started.",
}


def act(box: Box, tool: Tool, *, values: Values, limits: Limits, link: Link | None = None) -> CallResult:
    """Do what a checked call asks for."""
    try:
        match tool:
            case RunTool():
                return _run(box, tool, values=values, limits=tool.limits or limits, link=link)
            case ReadTool():
                return _read(box, tool, values["path"][0])
            case ListTool():
                return _list(box, tool, values["pattern"])
            case WriteTool():
                box.write(Tree.of({values["path"][0]: values["text"][0]}))
            case PatchTool():
                patches = read_patch(values["patch"][0])
                paths = sorted(path for patch in patches for path in patch.paths)
                box.write(patched(_present(box, paths), patches))
            case _ as unreachable:
                assert_never(unreachable)
    except (Denied, PatchError) as error:
        return CallResult(tool=tool.name, reason=Reason.DENIED, message=str(error))
    return CallResult(tool=tool.name, reason=Reason.EXIT, code=0, out=b"done\n")


def _run(box: Box, tool: RunTool, *, values: Values, limits: Limits, link: Link | None) -> CallResult:
    command = Command(
        argv=fill(tool, values),
        env=tool.env,
        cwd=tool.cwd,
        stdin="".join(values[tool.stdin.name]).encode() if tool.stdin else b"",
        link=link,
        limits=limits,
        network=tool.network,
        is_warm=tool.is_warm,
    )
    return _result(tool.name, box.run(command))


def _read(box: Box, tool: ReadTool, path: str) -> CallResult:
    found = box.read(Wanted(patterns=(_literal(path),), max_files=1, max_bytes=tool.max_bytes))
    if path in found.tree.files:
        data = found.tree.files[path]
        return CallResult(tool=tool.name, reason=Reason.EXIT, code=0, out=data, total_bytes=len(data))
    why = found.refused[0][1] if found.refused else "no such file"
    return CallResult(tool=tool.name, reason=Reason.EXIT, code=1, err=f"{path}: {why}\n".encode())


def _list(box: Box, tool: ListTool, pattern: tuple[str, ...]) -> CallResult:
    patterns = pattern or ("**",)
    found = box.read(Wanted(patterns=patterns, max_files=tool.max_files, with_data=False))
    lines = "".join(f"{path}\t{size.decode()}\n" for path, size in found.tree.files.items())
    more = "" if found.is_complete else "there are more files than are listed\n"
    return CallResult(
        tool=tool.name, reason=Reason.EXIT, code=0, out=lines.encode(), err=more.encode(), is_truncated=bool(more)
    )


def _present(box: Box, paths: list[str]) -> Tree:
    wanted = Wanted(patterns=tuple(map(_literal, paths)), max_files=len(paths), max_bytes=64 << 20)
    return box.read(wanted).tree


def _result(tool: str, ran: Ran) -> CallResult:
    return CallResult(
        tool=tool,
        reason=ran.reason,
        code=ran.code,
        signal=ran.signal,
        out=ran.out,
        err=ran.err,
        total_bytes=ran.total_bytes,
        is_truncated=ran.total_bytes > len(ran.out) + len(ran.err),
        wall_s=ran.wall_s,
        cpu_s=ran.cpu_s,
        peak_bytes=ran.peak_bytes,
        message=f"Killed by signal {ran.signal}." if ran.signal else _SPEAKS.get(ran.reason, ""),
        why=ran.message,
    )


def _literal(path: str) -> str:
    """A pattern that only this path fits."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)
