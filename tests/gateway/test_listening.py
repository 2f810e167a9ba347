"""What the names at the top give, and what is said where the gateway's packages are missing."""

import subprocess
import sys

import pytest

MISSING = "import sys; sys.modules.update(dict.fromkeys({packages!r})); "


def told(program: str, *packages: str) -> str:
    """What a fresh interpreter without some packages says last."""
    done = subprocess.run(
        [sys.executable, "-c", MISSING.format(packages=packages) + program], capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "llguidance"])
def test_a_missing_package_of_the_gateway_is_named_with_the_extra_that_has_it(package: str) -> None:
    found = told("from kifu.gateway.listening import check_installed; check_installed()", package)
    assert f"needs the package `{package}`" in found
    assert found.endswith("pip install 'kifu[gateway]'")


def test_the_command_names_the_extra_that_is_missing() -> None:
    found = told("from kifu.cli import main; sys.argv = ['kifu', 'gateway', 'x']; main()", "uvicorn")
    assert found.endswith("pip install 'kifu[gateway]'")


def test_the_decorators_at_the_top_need_no_package_of_the_gateway() -> None:
    program = "import kifu; print(kifu.agent(lambda task, endpoint: 'x').id, kifu.reward.__name__)"
    assert told(program, "starlette", "uvicorn", "llguidance", "aiohttp", "torch") == "function:<lambda> reward"
