"""Models every room's tests may ask for."""

import pytest

from kifu.models import ModelFolder, pull, tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """The random tiny Llama; shared, so read only."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def smollm2() -> ModelFolder:
    """SmolLM2-135M-Instruct in the user's cache; the first use downloads 93 MB."""
    return pull("smollm2-135m")
