"""What every room's tests share: models, and a reason for tests that need a device this machine lacks."""

import importlib.util
import subprocess
import sys

import pytest

from kifu.models import ModelFolder, pull, tiny_llama

_HAS_CUDA = "import sys, torch; sys.exit(not torch.cuda.is_available())"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """The random tiny Llama; shared, so read only."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def smollm2() -> ModelFolder:
    """SmolLM2-135M-Instruct in the user's cache; the first use downloads 93 MB."""
    return pull("smollm2-135m")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu where no CUDA device answers; torch is asked only when there is such a test."""
    marked = [item for item in items if "gpu" in item.keywords]
    if not marked:
        return
    if (
        importlib.util.find_spec("torch")
        and not subprocess.run([sys.executable, "-c", _HAS_CUDA], check=False).returncode
    ):
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device; run scripts/gpu on a machine that has one"))
