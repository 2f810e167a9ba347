"""Where real task data lies, beside the small examples that the tests carry themselves."""

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture
def task_data() -> Path:
    """The folder of real task files; a test that needs it says so where it is missing."""
    folder = Path(os.environ.get("KIFU_TASK_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip(f"no real task files at {folder}; name their folder in KIFU_TASK_DATA")
    return folder
