"""Change records answered by one message of search/replace edits, paid by likeness to the oracle's patch. Nothing runs.

SWE-RL (Wei et al., 2025). Records come from a file, or are made by planting defects in functions of pinned packages.
"""

import ast
import json
import random
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import ClassVar, TypeGuard

from kifu.envs.contract import Environment
from kifu.envs.repositories.mutation import choose, mutated
from kifu.envs.repositories.packages import PACKAGES, open_package
from kifu.envs.spec import Capabilities, Observation, Snapshot, Task, ToolSpec
from kifu.envs.splits import SPLITS, split_range
from kifu.errors import UsageError
from kifu.records import Json, ToolCall, Trust, Verdict
from kifu.sandbox.patches import apply_patch, read_patch
from kifu.verify import swe_rl, swe_rl_reward

_FORM = (
    "Think between <think> and </think>, then answer between <solution> and </solution> with blocks of this form:\n"
    "```python\n### path\n<<<<<<< SEARCH\nlines as they stand\n=======\nlines in their place\n>>>>>>> REPLACE\n```"
)
_LONGEST = 1_200
"""Characters of a function that a defect is planted in."""


class PatchAnswer(Environment):
    """Mend files by a message with search/replace edits; the reward is how much the patch is like the oracle's."""

    id: ClassVar[str] = "swe_rl"
    capabilities: ClassVar[Capabilities] = Capabilities(verify="text")
    instructions: ClassVar[str] = f"Mend the files. {_FORM}"
    facts: ClassVar[Mapping[str, str]] = {
        "initial states": "a change record: a problem, files before the change; its own or planted by the task's seed",
        "observations": "the problem and the files, all of them data",
        "hidden": "the files after the change",
        "actions": "one message with edits",
        "reset, versions, seeds": "the record; package, digest and seed fix a planted one",
        "success": "the patch is the oracle's",
        "failure": "it is another one, which may be right as well: nothing is executed",
        "end": "the first message",
        "reward": "likeness of the patches in [0, 1]; -1 for an answer that is not in the form or does not apply",
        "irreversible": "answering",
    }
    records: ClassVar[tuple[Task, ...]] = ()
    """Of a file; see `changes`. Empty: defects are planted."""
    packages: ClassVar[tuple[str, ...]] = tuple(name for name, item in PACKAGES.items() if item.split == "train")
    held_out: ClassVar[tuple[str, ...]] = tuple(name for name, item in PACKAGES.items() if item.split == "held_out")

    def __init__(self) -> None:
        self._task: Task | None = None
        self._answer: str | None = None

    @classmethod
    def functions(cls, package: str) -> Mapping[str, str]:
        """Path to text of the short functions of a package that defects are planted in; override it for your own."""
        return _functions(package)

    def reset(self, task: Task, seed: int) -> Observation:
        """Show the problem and the files."""
        files, _ = _sides(task)
        self._task, self._answer = task, None
        shown = "\n".join(f"### {path}\n{text}" for path, text in files.items())
        return Observation(text=f"{task.data.get('problem')}\n\n{shown}", trust=Trust.OUTSIDE)

    def tools(self) -> tuple[ToolSpec, ...]:
        """None."""
        return ()

    def answered(self, text: str) -> None:
        """Take the message."""
        self._answer = text

    def verify(self) -> Verdict:
        """Compare the patches; silence is an answer that cannot be read."""
        if self._task is None:
            raise UsageError("swe_rl: reset comes first")
        files, oracle = _sides(self._task)
        return swe_rl(self._answer or "", files=files, oracle=oracle)

    def snapshot(self) -> Snapshot:
        """The answer so far; the task is given by reset."""
        return {"answer": self._answer}

    def restore(self, ref: Snapshot) -> None:
        """Take back an answer; reset with the same task first."""
        if self._task is None or not isinstance(ref, dict) or set(ref) != {"answer"}:
            raise UsageError(f"swe_rl: found snapshot {ref!r:.100}, expected an answer; reset with its task first")
        self._answer = None if ref["answer"] is None else str(ref["answer"])

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """Records of a split in the order of the file, each once; or planted defects without end."""
        if cls.records:
            first = seed - (SPLITS[split].start if split in SPLITS else 0)
            own = [task for task in cls.records if task.split == split]
            if split == "demonstration" and not own:  # those to train on are what is demonstrated, as often as asked
                own = [task for task in cls.records if task.split == "train"]
                yield from (own[at % len(own)] for at in count(max(first, 0)) if own)
            yield from own[max(first, 0) :]
            return
        names = cls.held_out if split == "held_out" else cls.packages
        for at in split_range(split, seed):
            made = _planted(cls.functions(names[at % len(names)]), names[at % len(names)], at, split=split)
            if made is not None:
                yield made

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """The oracle's edits, each file as one block of its changed lines; with noise, the lines as they stand."""
        files, oracle = _sides(task)
        keeps = random.Random(f"swe_rl/{task.id}/{seed}").random() < noise
        blocks = [_block(path, files.get(path, ""), text, keeps=keeps) for path, text in oracle.items()]
        return (f"<think>\nThe files are not as they should be.\n</think>\n<solution>\n{''.join(blocks)}</solution>",)


def changes(path: str | Path) -> type[PatchAnswer]:
    """The environment of a JSONL file of change records.

    Each line is an object with ``id``, ``problem``, ``files`` (path to text before) and either ``oracle`` (path to text
    after) or ``patch`` (a unified diff); optional ``family`` and ``split`` (default ``train``).

    Raises:
        UsageError: names the line, what was found and what was expected.
    """
    source = Path(path)
    try:
        lines = source.read_text().split("\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"{source}: no change records can be read: {error}") from None
    rows = [read_change(line, where=f"{source}, line {at}") for at, line in enumerate(lines, start=1) if line.strip()]
    known: set[str] = set()
    for task in rows:
        if task.id in known:
            raise UsageError(f"{source}: two records are called {task.id!r}")
        known.add(task.id)
    if not rows:
        raise UsageError(f"{source}: no change record; expected one JSON object per line")
    return type("Changes", (PatchAnswer,), {"records": tuple(rows), "__doc__": f"Change records of {source.name}."})


def read_change(line: str, *, where: str) -> Task:
    """The task of a line, see `changes`.

    Raises:
        UsageError: it is none, or its own oracle does not earn 1.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or not isinstance(row.get("problem"), str):
        raise UsageError(f"{where}: expected an object with texts `id` and `problem`, `files`, and `oracle` or `patch`")
    files, oracle = row.get("files"), row.get("oracle")
    if oracle is None and isinstance(row.get("patch"), str) and _are_texts(files):
        after = apply_patch(files, read_patch(row["patch"], where=where), where=where)
        if None in after.values():
            raise UsageError(f"{where}: its patch removes a file, which no edit can do; drop it")
        oracle = after
    if not _are_texts(files) or not _are_texts(oracle) or not oracle:
        raise UsageError(
            f"{where}: found files {type(files).__name__} and oracle {type(oracle).__name__}, expected texts"
        )
    data: dict[str, Json] = {"problem": row["problem"], "files": {**files}, "oracle": {**oracle}}
    task = Task(id=row["id"], family=str(row.get("family", "")), split=str(row.get("split", "train")), data=data)
    reward = swe_rl_reward(str(PatchAnswer.demonstrate(task)[0]), files=files, oracle=oracle)
    if reward.reward != 1.0:
        raise UsageError(f"{where}: its own oracle earns {reward.reward}: {reward.problem}; drop it")
    return task


def _are_texts(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(
        isinstance(key, str) and isinstance(item, str) for key, item in value.items()
    )


def _sides(task: Task) -> tuple[dict[str, str], dict[str, str]]:
    files, oracle = task.data.get("files"), task.data.get("oracle")
    if not isinstance(files, dict) or not isinstance(oracle, dict) or not oracle:
        raise UsageError(
            f"swe_rl task `{task.id}`: found data with {sorted(task.data)}, expected problem, files, oracle"
        )
    return {path: str(text) for path, text in files.items()}, {path: str(text) for path, text in oracle.items()}


@lru_cache(maxsize=16)
def _functions(package: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for path, text in open_package(package).sources.items():
        for node in ast.parse(text).body:
            source = ast.get_source_segment(text, node) if isinstance(node, ast.FunctionDef) else None
            if isinstance(node, ast.FunctionDef) and source and not node.decorator_list and len(source) <= _LONGEST:
                found[f"{path.removesuffix('.py')}/{node.name}.py"] = source + "\n"
    return found


def _planted(functions: Mapping[str, str], package: str, seed: int, *, split: str) -> Task | None:
    """The record of one defect; None where nothing can be planted with this seed."""
    chosen = choose(functions, count=1, seed=f"swe_rl/{package}/{seed}")
    if chosen is None:
        return None
    (defect,) = chosen
    sound = functions[defect.path]
    problem = f"The function {defect.function} of {package} does not do what it should. Mend it."
    data: dict[str, Json] = {
        "problem": problem,
        "files": {defect.path: mutated(sound, chosen)},
        "oracle": {defect.path: sound},
    }
    return Task(id=f"swe_rl/{package}-{seed}", seed=seed, family=package, split=split, data=data)


def _block(path: str, before: str, after: str, *, keeps: bool) -> str:
    """One edit from the first changed line to the last, with lines around it until it stands there once."""
    old, new = before.split("\n"), after.split("\n")
    low = next(
        (at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
    )
    tail = 0
    while tail < min(len(old), len(new)) - low and old[len(old) - 1 - tail] == new[len(new) - 1 - tail]:
        tail += 1
    text = "\n" + before
    while low > 0 or tail > 0:
        part = "\n".join(old[low : len(old) - tail])
        if (
            part
            and low < len(old) - tail
            and low < len(new) - tail
            and text.count(f"\n{part}\n") == 1
            and text.count(f"\n{part}") == 1
        ):
            break
        low, tail = max(low - 1, 0), max(tail - 1, 0)
    part, made = "\n".join(old[low : len(old) - tail]), "\n".join(new[low : len(new) - tail])
    shown = f"{part} " if keeps else made
    return f"```python\n### {path}\n<<<<<<< SEARCH\n{part}\n=======\n{shown}\n>>>>>>> REPLACE\n```\n"
