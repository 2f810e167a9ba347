"""`make train` says what it will take before it takes it, where no published figure tells. The real run: README."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "train"


@pytest.mark.parametrize("fast", [True, False], ids=["fast bfloat16", "float32"])
@pytest.mark.parametrize("begun", [True, False], ids=["a run begun before", "a new run"])
def test_an_estimate_comes_before_a_new_run_where_bfloat16_is_slow(tmp_path: Path, *, fast: bool, begun: bool) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "train").write_bytes(SCRIPT.read_bytes())
    told = tmp_path / "told.txt"
    kifu = tmp_path / "kifu"
    answer = f'{{\n  "fast_bf16": {str(fast).lower()},\n  "ram_bytes": 1\n}}'
    kifu.write_text(f"#!/bin/sh\necho \"$@\" >> '{told}'\n[ \"$1\" = doctor ] && echo '{answer}'\nexit 0\n")
    kifu.chmod(0o755)
    if begun:
        run = tmp_path / "runs" / "small-seed0"
        run.mkdir(parents=True)
        (run / "run.json").touch()
    done = subprocess.run(
        ["bash", scripts / "train", kifu, "recipes/small.toml"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    verbs = [line.split()[0] for line in told.read_text().splitlines()]
    estimate = [] if fast else ["check"]
    new = ["doctor", *estimate, "train"]
    assert verbs == ["models", *(["resume"] if begun else new), "audit", "report"]
    assert ("no fast bfloat16" in done.stdout) is (not fast and not begun)
