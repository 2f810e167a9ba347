"""Every built-in environment by name, and how a user's own is found."""

from collections.abc import Mapping

from kifu.envs.contract import Environment
from kifu.envs.files import load_module
from kifu.envs.suites.calc_tools import CalcTools
from kifu.envs.suites.code_repair import CodeRepair, repairs
from kifu.envs.suites.corridor import Corridor
from kifu.envs.suites.jsonl import questions
from kifu.envs.suites.key_door import KeyDoor
from kifu.envs.suites.key_door_text import KeyDoorText
from kifu.envs.suites.loop_room import LoopRoom
from kifu.envs.suites.outbox import Outbox, OutboxDirect, OutboxShadow
from kifu.envs.suites.python_tool import PythonExpression, PythonTool
from kifu.envs.suites.search_text import SearchText
from kifu.envs.suites.swe_rl import PatchAnswer, changes
from kifu.envs.suites.terminal import Terminal
from kifu.errors import UsageError, nearest

ENVIRONMENTS: Mapping[str, type[Environment]] = {
    "calc_tools": CalcTools,
    "code_repair": CodeRepair,
    "corridor": Corridor,
    "key_door": KeyDoor,
    "key_door_text": KeyDoorText,
    "loop_room": LoopRoom,
    "outbox": Outbox,
    "outbox_direct": OutboxDirect,
    "outbox_shadow": OutboxShadow,
    "python_expression": PythonExpression,
    "python_tool": PythonTool,
    "search_text": SearchText,
    "swe_rl": PatchAnswer,
    "terminal": Terminal,
}


def resolve_environment(name: str) -> type[Environment]:
    """The class a name means.

    A built-in environment's name; ``module:Class``; ``path/to/file.py:Class``; ``path/to/tasks.jsonl``, each line with
    its own verifier; ``path/to/tasks.jsonl@REWARD`` with ``exact``, ``numeric``, ``regex``, ``module:function`` or
    ``path/to/file.py:function``; or ``code_repair@SHEET.toml``, the instances of a sheet;
    or ``swe_rl@RECORDS.jsonl``, change records.

    Raises:
        UsageError: nothing of that name, or it is not an `Environment`.
    """
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    path, at, reward = name.partition("@")
    if path == "code_repair" and at:
        return repairs(reward)
    if path == "swe_rl" and at:
        return changes(reward)
    if path.endswith(".jsonl"):
        return questions(path, reward=reward if at else None)
    source, colon, attribute = name.rpartition(":")
    if not colon:
        raise UsageError(
            f"no environment `{name}`; {nearest(name, list(ENVIRONMENTS))} "
            "Your own is named `module:Class` or `file.py:Class`."
        )
    module = load_module(source)
    found = getattr(module, attribute, None)
    if found is None:
        classes = [
            key for key, item in vars(module).items() if isinstance(item, type) and issubclass(item, Environment)
        ]
        raise UsageError(f"environment `{name}`: `{source}` has no `{attribute}`; {nearest(attribute, classes)}")
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise UsageError(f"environment `{name}`: found {found!r}, expected a subclass of kifu.Environment")
    return found
