"""Names that several methods share are refused with all of them."""

import pytest

from kifu.algorithms import build_algorithm
from kifu.errors import ExperimentError


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("arpo", ["agentic_reinforced_po", "agentic_replay_po"]),
        ("ARPO", ["agentic_reinforced_po", "agentic_replay_po"]),
        ("trace", ["trace_turn_credit", "trace_budget"]),
        ("agentprm", ["arXiv 2502.10325", "arXiv 2511.08325"]),
        ("echo", ["arXiv 2510.10304", "arXiv 2606.31650", "prime-rl"]),
    ],
)
def test_a_shared_name_is_refused_with_everything_it_may_mean(name: str, meant: list[str]) -> None:
    with pytest.raises(ExperimentError) as raised:
        build_algorithm(name)
    assert [part for part in [f"`{name}`", "several methods", *meant] if part not in str(raised.value)] == []


def test_another_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ExperimentError, match="did you mean `grpo`"):
        build_algorithm("grop")
