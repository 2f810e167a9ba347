"""`kifu check`: what it says about the discount, and how its lines stand under each other."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Kifu = Callable[..., Result]
Write = Callable[..., Path]


def test_a_discount_that_nobody_states_is_named_with_what_to_write(kifu: Kifu, experiment: Write) -> None:
    found = kifu("check", experiment("gamma = 0.99\n", ""), "--profile", "check", "--no-measure")
    assert found.exit_code == 2
    for part in ("credit.gamma: missing", "`key_door`", "several turns", "in [0, 1]", "`gamma = 1.0`"):
        assert part in found.stderr
    assert "ready" not in found.stdout


def test_the_discount_in_force_is_shown(kifu: Kifu, experiment: Write) -> None:
    arguments = ("check", experiment(), "--profile", "check", "--no-measure")
    assert "discount of returns 0.99" in kifu(*arguments).stdout
    assert [stage["gamma"] for stage in json.loads(kifu(*arguments, "--json").stdout)["stages"]] == [0.99]


@pytest.mark.parametrize("count", [1, 10])
def test_everything_after_the_labels_begins_in_one_column(kifu: Kifu, experiment: Write, count: int) -> None:
    """Lines before the table of scores: a label of at most ten characters, then text from the twelfth on."""
    method = "type = 'train'\ncredit = { algorithm = 'reinforce', gamma = 1.0 }\n"
    update = "steps = 1\nprompts_per_step = 2\ngroup_size = 1\noptimizer = { type = 'adamw', learning_rate = 1e-3 }\n"
    stages = "".join(f"[stages.s{at}]\n{method}[stages.s{at}.update]\n{update}" for at in range(count))
    path = experiment('on_truncation = "bootstrap"', 'on_truncation = "terminal"')
    text = path.read_text()
    head, rest = text.split("[credit]")[0], text.split("[evaluation]")[1].split("[profiles")[0]
    path.write_text(f"{head}{stages}[evaluation]{rest}")

    shown = kifu("check", path, "--no-measure").stdout
    lines = shown.split("mean reward without a model")[0].splitlines()
    assert sum(line.startswith("stage ") for line in lines) == count
    assert [line for line in lines if line[10] != " " or line[11] == " "] == []
