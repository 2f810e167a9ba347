"""Names of environments, and what is said when there is none."""

from pathlib import Path

import pytest

from kifu.envs import ENVIRONMENTS, Environment, resolve_environment
from kifu.errors import UsageError

OWN = """
from kifu.envs import Environment
class Mine(Environment):
    pass
class Other:
    pass
"""


def test_every_built_in_is_found_under_its_own_id() -> None:
    assert {name: cls.id for name, cls in ENVIRONMENTS.items()} == {name: name for name in ENVIRONMENTS}
    assert all(resolve_environment(name) is cls for name, cls in ENVIRONMENTS.items())


def test_a_class_is_found_by_module_and_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_world.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert issubclass(resolve_environment("own_world:Mine"), Environment)
    by_file = resolve_environment(f"{tmp_path}/own_world.py:Mine")
    assert by_file.__name__ == "Mine"
    assert resolve_environment(f"{tmp_path}/own_world.py:Mine") is by_file


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("keydoor", "did you mean `key_door`"),
        ("own:Min", "did you mean `Mine`"),
        ("own:Other", "expected a subclass of kifu.Environment"),
        ("no_such_module:X", "no module `no_such_module` on the path"),
        ("missing.py:X", "no file missing.py"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_what_to_do(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(UsageError, match=words):
        resolve_environment(name.replace("own:", f"{tmp_path}/own.py:"))


def test_an_import_error_inside_the_users_module_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="a_package_nobody_has"):
        resolve_environment("needs_more:X")


@pytest.mark.parametrize("source", ["raise RuntimeError('no licence')", "def (", "raise SystemExit(3)"])
def test_code_that_cannot_be_executed_is_a_usage_error_each_time(tmp_path: Path, source: str) -> None:
    """The second attempt does not find a module that was half executed by the first."""
    (tmp_path / "broken.py").write_text(source + "\n")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"loading `.*broken\.py` raised (RuntimeError|SyntaxError|SystemExit)"):
            resolve_environment(f"{tmp_path}/broken.py:X")


@pytest.mark.parametrize("name", ["../../etc/passwd:X", ".relative:X", ":X", "a b:X"])
def test_a_source_that_is_no_module_name_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="neither a module nor a file"):
        resolve_environment(name)
