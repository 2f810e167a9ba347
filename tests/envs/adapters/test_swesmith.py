"""Instances of SWE-smith: the patch breaks, its reverse mends."""

import json
from pathlib import Path
from typing import Any

import pytest

from kifu.envs.adapters import read_swesmith
from kifu.errors import UsageError
from kifu.sandbox.patches import apply_patch

ROW: dict[str, Any] = {
    "instance_id": "owner__name.12345678.func_pm_1",
    "repo": "swesmith/owner__name.12345678",
    "patch": "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
    "FAIL_TO_PASS": ["t.py::test_x"],
    "PASS_TO_PASS": [],
    "image_name": "swesmith.x86_64.owner__name.12345678",
}


def _read(folder: Path, row: object) -> Any:  # noqa: ANN401
    path = folder / "task.json"
    path.write_text(json.dumps(row))
    return read_swesmith(path, interpreters={"swesmith/owner__name.12345678": "3.10"})


def test_the_gold_patch_undoes_the_bug(tmp_path: Path) -> None:
    (found,) = _read(tmp_path, ROW)
    assert apply_patch({"m.py": "x = 1\n"}, found.bug) == {"m.py": "x = 2\n"}
    assert apply_patch({"m.py": "x = 2\n"}, found.gold) == {"m.py": "x = 1\n"}
    assert (found.base, found.interpreter, found.tests) == ("12345678", "3.10", ())


def test_an_instance_of_another_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no instance of swesmith/other"):
        _read(tmp_path, {**ROW, "repo": "swesmith/other.1"})


def test_the_real_instance_is_read(task_data: Path) -> None:
    (found,) = read_swesmith(task_data / "swesmith" / "pandas-dev__pandas.95280573.pr_53652.json")
    assert found.fail_to_pass == tuple(
        f"pandas/tests/indexing/test_datetime.py::TestDatetimeIndex::test_getitem_pyarrow_index[{kind}]"
        for kind in ("DataFrame", "Series")
    )
    assert len(found.pass_to_pass) == 9
    mended = "".join(found.gold[0].hunks[0].after)
    assert 'lib.is_np_dtype(keyarr.dtype, "mM")' in mended
    assert found.interpreter is None
