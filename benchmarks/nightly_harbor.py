"""Harbor's own command line with kifu's environment class: the oracle earns 1, the agent that does nothing 0.

python benchmarks/nightly_harbor.py

Harbor has an environment of its own (Python 3.12 or later, found as pyenv lays it out; PYENV_ROOT), with kifu installed
in it. Tasks are small folders made here, and the cookbook's simple task from KIFU_TASK_DATA, with tests made here.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from kifu.envs.adapters.harbor.errors import ERROR_RULES

CLASS = "kifu.envs.adapters.harbor.plugin:KifuEnvironment"
HARBOR = "harbor==0.26.0"
_TOP = Path(__file__).resolve().parents[1]
_CACHE = Path(os.environ.get("KIFU_CACHE") or platformdirs.user_cache_path("kifu")) / "harbor"
_DATA = Path(os.environ.get("KIFU_TASK_DATA", _TOP.parent / "shared" / "data")) / "harbor"
_DOCKERFILE = "FROM ubuntu:24.04\nWORKDIR /app\n"
_HELLO = {
    "tests/test.sh": '#!/bin/bash\n[ "$(cat /app/hello.txt 2>/dev/null)" = "Hello, world!" ] && r=1 || r=0\n'
    "echo $r > /logs/verifier/reward.txt\n",
    "solution/solve.sh": '#!/bin/bash\necho "Hello, world!" > /app/hello.txt\n',
}
TASKS: Mapping[str, Mapping[str, str]] = {
    "hello": {
        "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 60\n[verifier]\ntimeout_sec = 60\n',
        "instruction.md": 'Create hello.txt with the text "Hello, world!".\n',
        **_HELLO,
    },
    "rewards-by-name": {
        "task.toml": 'version = "1.0"\n[environment]\nallow_internet = false\n',
        "instruction.md": "Write the primes below 20 to primes.txt, one per line, and their sum to sum.txt.\n",
        "tests/test.sh": "#!/bin/bash\npython3 /tests/judge.py\n",
        "tests/judge.py": "import json, pathlib\n"
        "def text(name):\n"
        "    path = pathlib.Path('/app') / name\n"
        "    return path.read_text().split() if path.is_file() else []\n"
        "right = [str(p) for p in (2, 3, 5, 7, 11, 13, 17, 19)]\n"
        "found = {'primes': float(text('primes.txt') == right), 'sum': float(text('sum.txt') == ['77'])}\n"
        "pathlib.Path('/logs/verifier/reward.json').write_text(json.dumps(found))\n",
        "solution/solve.sh": "#!/bin/bash\nprintf '%s\\n' 2 3 5 7 11 13 17 19 > primes.txt\necho 77 > sum.txt\n",
    },
    "no-survivor": {
        "task.toml": 'version = "1.0"\n',
        "instruction.md": "Leave a file done.txt; no process of the agent may run when the tests do.\n",
        "tests/test.sh": "#!/bin/bash\nsleep 1\n[ -f /app/done.txt ] && [ ! -f /app/late.txt ] && r=1 || r=0\n"
        "echo $r > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "#!/bin/bash\n(setsid sh -c 'sleep 0.5; touch /app/late.txt' > /dev/null 2>&1 &)\n"
        "touch /app/done.txt\n",
    },
}
IMAGE = {
    "task.toml": 'version = "1.0"\n',
    "instruction.md": "Needs an image.\n",
    "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/bash\ntrue\n",
    "environment/Dockerfile": "FROM ubuntu:24.04\nRUN apt-get install -y cowsay\n",
}


def main() -> None:
    """Run all of it; exit 1 where a reward is not as it must be."""
    harbor = _harbor()
    problems = _table(harbor)
    print("task                    agent   trials  exceptions  mean reward")
    with tempfile.TemporaryDirectory() as scratch:
        for name, folder in _folders(Path(scratch)).items():
            for agent, wanted in (("oracle", 1.0), ("nop", 0.0)):
                trials, errors, mean = _run(harbor, folder, agent, jobs=Path(scratch) / "jobs")
                print(f"{name:23} {agent:7} {trials:6} {errors:10}  {mean}")
                if mean != wanted or errors:
                    problems.append(f"problem: {name} {agent}: {mean} with {errors} exceptions, expected {wanted}")
        made = _write(Path(scratch) / "needs-an-image", IMAGE)
        _, errors, mean = _run(harbor, made, "oracle", jobs=Path(scratch) / "jobs")
        print(f"{'needs-an-image':23} {'oracle':7} {1:6} {errors:10}  {mean}   (refused: an image is needed)")
        if mean is not None and mean > 0:
            problems.append("problem: a task that needs an image was run without it")
    print("\n".join(problems) or "\nall as it must be")
    sys.exit(bool(problems))


def _run(harbor: Path, folder: Path, agent: str, *, jobs: Path) -> tuple[int, int, float | None]:
    name = f"{folder.name}-{agent}"
    command = [
        str(harbor),
        "run",
        "-p",
        str(folder),
        "-a",
        agent,
        "--env",
        CLASS,
        "-o",
        str(jobs),
        "--job-name",
        name,
        "-q",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=jobs.parent,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    result = jobs / name / "result.json"
    if not result.is_file():
        raise SystemExit(f"harbor run failed with {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    found = json.loads(result.read_text())["stats"]
    evaluations: list[dict[str, Any]] = list(found["evals"].values())
    values = [float(value) for part in evaluations for metric in part["metrics"] for value in metric.values()]
    return found["n_completed_trials"], found["n_errored_trials"], sum(values) / len(values) if values else None


def _table(harbor: Path) -> list[str]:
    """Whether kifu's table of failures is Harbor's, name by name."""
    program = (
        "import json; from harbor.models.trial.error_policy import ERROR_POLICIES as table; "
        "print(json.dumps({n: [p.should_retry, p.should_grade, p.has_valid_reward] for n, p in table.items()}))"
    )
    done = subprocess.run([str(harbor.with_name("python")), "-c", program], capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout)
    ours = {name: [rule.retry, rule.grade, rule.has_reward] for name, rule in ERROR_RULES.items()}
    print(f"failures in Harbor's table: {len(theirs)}, with the same three answers here: {_same(ours, theirs)}\n")
    return [] if ours == theirs else [f"problem: the tables differ in {sorted(set(ours) ^ set(theirs))}"]


def _same(ours: Mapping[str, object], theirs: Mapping[str, object]) -> int:
    return sum(ours.get(name) == answers for name, answers in theirs.items())


def _folders(scratch: Path) -> dict[str, Path]:
    found = {
        name: _write(scratch / name, {"environment/Dockerfile": _DOCKERFILE, **files}) for name, files in TASKS.items()
    }
    real = _DATA / "simple-task"
    if real.is_dir():
        files = {path.name: path.read_text() for path in real.iterdir() if path.is_file()}
        found["simple-task (cookbook)"] = _write(
            scratch / "simple-task", {**files, **_HELLO, "environment/Dockerfile": _DOCKERFILE}
        )
    return found


def _write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _harbor() -> Path:
    """Harbor's command in an environment of its own, made when missing."""
    target = _CACHE / "environment"
    if not (target / "complete").exists():
        root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        pythons = [path / "bin" / "python3" for path in sorted(root.glob("3.1[2-9]*"))]
        if not pythons:
            raise SystemExit(f"no Python 3.12 or later below {root}; name pyenv's folder in PYENV_ROOT")
        target.parent.mkdir(parents=True, exist_ok=True)
        _must([str(pythons[0]), "-m", "venv", "--clear", str(target)])
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _must([*pip, HARBOR, "--editable", str(_TOP)])
        (target / "complete").touch()
    return target / "bin" / "harbor"


def _must(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{done.stderr[-1500:]}")


if __name__ == "__main__":
    main()
