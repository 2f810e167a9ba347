"""Gold patches of three SWE-bench instances through `code_repair`, beside the official grader on the same logs.

python benchmarks/nightly_swebench.py [--lint]

An instance's tree is the nearest source distribution, not its base commit: this tests the harness and is no SWE-bench
score. Needs the instances (KIFU_TASK_DATA), Pythons 3.6 and 3.9 as pyenv lays them out (PYENV_ROOT), and pip.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from kifu.envs.linting import lint_repair
from kifu.envs.repositories.instances import Instances
from kifu.envs.suites.code_repair import CodeRepair, repairs
from kifu.records import ToolCall, Verdict
from kifu.sandbox import Tree
from kifu.verify.logs import Style, read_log
from kifu.verify.program import RUNNERS, Logged, ProgramJudge

GRADER = ("swebench==5.0.2",)
_CACHE = Path(os.environ.get("KIFU_CACHE") or platformdirs.user_cache_path("kifu")) / "swebench"
_DATA = Path(os.environ.get("KIFU_TASK_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
_ASK_GRADER = """
import json, sys
from swebench.harness.grading import get_eval_report, get_logs_eval
from swebench.harness.log_parsers import PARSER_REGISTRY
from swebench.types import TestSpec
answers = []
for item in json.load(sys.stdin):
    spec = TestSpec(image="", eval_script_list=[], eval_type="pass_and_fail", **item["spec"])
    if item["bare"]:
        answers.append({"status": PARSER_REGISTRY[spec.log_parser](open(item["log"]).read(), spec)})
        continue
    prediction = {"instance_id": spec.instance_id, "model_name_or_path": "kifu", "model_patch": item["patch"]}
    report = get_eval_report(spec, prediction, item["log"], True)[spec.instance_id]
    answers.append({"resolved": report["resolved"], "status": get_logs_eval(spec, item["log"])[0]})
json.dump(answers, sys.stdout)
"""
_OUTCOMES = {"PASSED": "passed", "XFAIL": "passed", "FAILED": "failed", "ERROR": "error", "SKIPPED": "skipped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one instance runs on."""

    requirement: str
    file: str
    sha256: str
    python: str
    libraries: tuple[str, ...]
    runner: str
    sources: str
    parser: str


_DJANGO = ("asgiref==3.5.2", "sqlparse==0.4.2", "pytz==2022.1")
INSTANCES: Mapping[str, Needs] = {
    "django__django-15781": Needs(
        requirement="Django==4.0.5",
        file="Django-4.0.5.tar.gz",
        sha256="f7431a5de7277966f3785557c3928433347d998c1e6459324501378a291e5aab",
        python="3.9",
        libraries=_DJANGO,
        runner="django",
        sources="django/**",
        parser="parse_log_django",
    ),
    "django__django-15136": Needs(
        requirement="Django==4.0",
        file="Django-4.0.tar.gz",
        sha256="d5a8a14da819a8b9237ee4d8c78dfe056ff6e8a7511987be627192225113ee75",
        python="3.9",
        libraries=_DJANGO,
        runner="django",
        sources="django/**",
        parser="parse_log_django",
    ),
    "sympy__sympy-13031": Needs(
        requirement="sympy==1.1",
        file="sympy-1.1.tar.gz",
        sha256="e42d7b8cc719bb0427b503d49f8489ec6292c74957c3bd04216a8392bee37782",
        python="3.6",
        libraries=("mpmath==1.0.0",),
        runner="sympy",
        sources="sympy/**",
        parser="parse_log_sympy",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One instance with one patch."""

    instance: str
    patch: str
    verdict: Verdict
    logged: Logged
    text: str
    """The patch itself."""


def main() -> None:
    """Run all of it; exit 1 where anything is not as it must be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lint", action="store_true", help="also try the known cheats, which takes minutes")
    given = parser.parse_args()
    rows = _rows()
    _CACHE.mkdir(parents=True, exist_ok=True)
    environment = repairs(_sheet(rows))
    source = environment.source
    assert isinstance(source, Instances)
    found = [item for name in INSTANCES for item in _both(environment, source, name, gold=rows[name]["patch"])]
    answers = _asked(found, rows)
    problems = _compare(found, answers, rows)
    problems += _real_logs()
    if given.lint:
        problems += _lint(environment, source)
    source.close()
    print("\n".join(problems) or "\nall as it must be: gold resolves, empty does not, the official grader agrees")
    sys.exit(bool(problems))


def _both(environment: type[CodeRepair], source: Instances, name: str, *, gold: str) -> Iterator[Found]:
    task = source.task(name)
    case = environment.case(task)
    assert isinstance(case.judge, ProgramJudge)
    for patch in ("empty", "gold"):
        world = environment()
        world.reset(task, 0)
        calls = environment.demonstrate(task)[1:] if patch == "gold" else (ToolCall(name="submit"),)
        for call in calls:
            assert isinstance(call, ToolCall)
            world.step(call)
        verdict = world.verify()
        world.close()
        logged = case.judge.log(Tree.of(case.mended) if patch == "gold" else Tree())
        yield Found(
            instance=name, patch=patch, verdict=verdict, logged=logged, text=gold if patch == "gold" else "diff"
        )


def _compare(found: list[Found], answers: list[dict[str, Any]], rows: Mapping[str, dict[str, Any]]) -> list[str]:
    print("instance               patch  F2P  P2P      kifu code_repair      official  same outcome of ids")
    problems = []
    for item, answer in zip(found, answers, strict=True):
        row, style = rows[item.instance], RUNNERS[INSTANCES[item.instance].runner].style
        own = read_log(item.logged.text, style)
        shares = [f"{sum(own.get(n) == 'passed' for n in ids)}/{len(ids)}" for ids in _ids(row)]
        same, asked = _agreeing(own, answer["status"])
        resolved = item.verdict.success
        print(
            f"{item.instance:22} {item.patch:6} {shares[0]:4} {shares[1]:8} "
            f"{'resolved' if resolved else 'not resolved':13} {item.verdict.assurance:11} "
            f"{'resolved' if answer['resolved'] else 'no':9} {same} of {asked}"
        )
        wanted = item.patch == "gold"
        if resolved is not wanted or answer["resolved"] is not wanted or same != asked:
            problems.append(f"problem: {item.instance} {item.patch}: kifu {resolved}, official {answer['resolved']}")
    return problems


def _agreeing(own: Mapping[str, str], official: Mapping[str, str]) -> tuple[int, int]:
    """Of the ids that the official parser finds and that are whole names, those with the same outcome here."""
    named = {name: _OUTCOMES[status] for name, status in official.items()}
    return sum(own.get(name) == outcome for name, outcome in named.items() if name in own), sum(
        name in own for name in named
    )


def _asked(found: list[Found], rows: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        items = []
        for at, item in enumerate(found):
            log = Path(scratch) / f"{at}.log"
            log.write_text(
                f">>>>> Start Test Output\n{item.logged.text}\n>>>>> End Test Output\n"
                f">>>>> Test Exit Code: {item.logged.code}\n"
            )
            failing, passing = _ids(rows[item.instance])
            spec = {
                "instance_id": item.instance,
                "repo": rows[item.instance]["repo"],
                "version": rows[item.instance]["version"],
                "FAIL_TO_PASS": failing,
                "PASS_TO_PASS": passing,
                "log_parser": INSTANCES[item.instance].parser,
            }
            items.append({"spec": spec, "log": str(log), "patch": item.text, "bare": False})
        return _graded(items)


def _real_logs() -> list[str]:
    """The pytest parser on real logs of others."""
    logs = sorted((_DATA / "swesmith").rglob("*.txt"))
    spec = {"instance_id": "x", "repo": "x", "version": "", "FAIL_TO_PASS": [], "PASS_TO_PASS": []}
    items = [
        {"spec": {**spec, "log_parser": "parse_log_pytest"}, "log": str(log), "patch": "", "bare": True} for log in logs
    ]
    problems = []
    print("\nreal pytest logs of SWE-smith          ids   same outcome as the official parser")
    for log, answer in zip(logs, _graded(items), strict=True):
        style: Style = "pytest"
        own = read_log(log.read_text(), style)
        official = {name: _OUTCOMES[status] for name, status in answer["status"].items() if status in _OUTCOMES}
        same = sum(own.get(name) == outcome for name, outcome in official.items())
        print(f"{log.parent.name[:20]}/{log.name:24} {len(official):6} {same:6}")
        if same != len(official):
            problems.append(f"problem: {log.name}: {same} of {len(official)} outcomes are the same")
    return problems


def _lint(environment: type[CodeRepair], source: Instances) -> list[str]:
    found = lint_repair(environment, source.task("sympy__sympy-13031"))
    held = len(found.cheats) - len(found.accepted)
    print(f"\ncheats on {found.task}: {held} of {len(found.cheats)} held, assurance {found.assurance}")
    print(f"paid: {', '.join(found.accepted) or 'none'}")
    print(f"honest controls accepted: {sum(item.accepted for item in found.controls)} of {len(found.controls)}")
    return [f"problem: {line}" for line in found.problems]


def _graded(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(_grader()), "-c", _ASK_GRADER], input=json.dumps(items), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the official grader failed:\n{done.stderr[-2000:]}")
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _grader() -> Path:
    """The interpreter of the official grader's own environment, made when missing."""
    target = _CACHE / "grader"
    if not (target / "complete").exists():
        venv.create(target, with_pip=True, clear=True)
        _pip(target / "bin" / "python", "install", *GRADER)
        (target / "complete").touch()
    return target / "bin" / "python"


def _pip(python: Path | str, *arguments: str) -> None:
    done = subprocess.run(
        [str(python), "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"pip {' '.join(arguments)} failed:\n{done.stderr[-1500:]}")


def _rows() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((_DATA / "swebench").glob("*.json")):
        found |= {row["instance_id"]: row for row in json.loads(path.read_text())}
    missing = sorted(set(INSTANCES) - set(found))
    if missing:
        raise SystemExit(
            f"{_DATA}/swebench has no instance {missing[0]}; name the folder of task files in KIFU_TASK_DATA"
        )
    return found


def _ids(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    both = (row["FAIL_TO_PASS"], row["PASS_TO_PASS"])
    failing, passing = (json.loads(ids) if isinstance(ids, str) else ids for ids in both)
    return failing, passing


def _sheet(rows: Mapping[str, dict[str, Any]]) -> Path:
    """Everything the instances need, fetched, and the sheet that names it."""
    (_CACHE / "instances.json").write_text(json.dumps([rows[name] for name in INSTANCES]))
    lines = ['format = "swebench"', 'instances = "instances.json"']
    for name, needs in INSTANCES.items():
        python = _python(needs.python)
        libraries = _CACHE / f"libraries-{needs.python}"
        if not libraries.is_dir():
            _pip(python / "bin" / "python3", "install", "--target", str(libraries), *needs.libraries)
        if not (_CACHE / needs.file).is_file():
            _pip(sys.executable, "download", "--no-deps", "--no-binary=:all:", "-d", str(_CACHE), needs.requirement)
        digest = hashlib.sha256((_CACHE / needs.file).read_bytes()).hexdigest()
        if digest != needs.sha256:
            raise SystemExit(f"{needs.file}: SHA-256 {digest}, expected {needs.sha256}")
        lines += [f"[instance.{name}]", f'source = "{needs.file}"', f'sha256 = "{needs.sha256}"']
        lines += [f'python = "{python}"', f'libraries = "{libraries.name}"', f'runner = "{needs.runner}"']
        lines += [f'sources = ["{needs.sources}"]']
    sheet = _CACHE / "sheet.toml"
    sheet.write_text("\n".join(lines) + "\n")
    return sheet


def _python(version: str) -> Path:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(root.glob(f"{version}.*"))
    if not found:
        raise SystemExit(f"no Python {version} below {root}; name pyenv's folder in PYENV_ROOT")
    return found[-1]


if __name__ == "__main__":
    main()
