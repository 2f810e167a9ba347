"""A place for judges, shared by the tests of this room; started when the first of them asks."""

from collections.abc import Iterator

import pytest

from kifu.sandbox import DEFAULT_REQUIRED, Limits, NsBackend
from kifu.verify.outside import Workshop
from kifu.verify.repository import suite_workshop


@pytest.fixture(scope="session")
def bench() -> Iterator[Workshop]:
    """Where repository tests run."""
    with suite_workshop(
        limits=Limits(wall_s=120.0, cpu_s=20, output_keep_bytes=1 << 20, output_kill_bytes=4 << 20)
    ) as made:
        yield made


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    """Where single functions are asked."""
    backend = NsBackend(slot=2)
    assert not backend.prove().missing(DEFAULT_REQUIRED), backend.prove()
    yield Workshop(backend=backend, limits=Limits(wall_s=120.0, cpu_s=20))
    backend.close()
