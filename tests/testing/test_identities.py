"""On data where a method's distinguishing part has nothing to do, it is another one: equal gradients, in float64.

The table stands in docs/your_own_method.md too. The oracle of a row is the other method, whose formula is tested apart.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Doubles
from kifu.testing import Shape, trial_gradient

PAGE = Path(__file__).parents[2] / "docs" / "your_own_method.md"

SHAPES = {
    "any": Shape(),
    "every attempt succeeds": Shape(constant=1.0),
    "no branches": Shape(branches=False),
    "every group informative": Shape(),
    "no success to replay": Shape(),
    "single turn": Shape(turns=(1, 1), branches=False),
    "one token": Shape(turns=(1, 1), tokens=(1, 1), branches=False),
    "one group of one token": Shape(groups=1, turns=(1, 1), tokens=(1, 1), branches=False),
}


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Two settings that give one gradient on some data."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    other: str
    other_options: dict[str, Any] = field(default_factory=dict)
    data: str = "single turn"
    fresh: bool = False
    """Only on the policy that sampled."""
    elsewhere: bool = True
    """Whether the two differ on other data, so that the identity says something."""

    @property
    def row(self) -> str:
        """As the page prints it."""
        data = f"{self.data}, un-updated policy" if self.fresh else self.data
        return f"| {_call(self.method, self.options)} | {_call(self.other, self.other_options)} | {data} |"


def _call(name: str, options: dict[str, Any]) -> str:
    inner = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"`{name}({inner})`"


TRAJECTORY: dict[str, Any] = {"average": "trajectory"}
CRITIC: dict[str, Any] = {"entropy_coefficient": 0.0, "whiten": False}

IDENTITIES = [
    Identity(method="gspo", options={"clip_low": 0.2, "clip_high": 0.2}, other="grpo", data="one token"),
    Identity(method="turn_ppo", other="ppo", other_options={**CRITIC, "average": "turn"}, data="one token"),
    Identity(
        method="turn_ppo",
        options={"ratio": "token"},
        other="ppo",
        other_options={**CRITIC, "average": "turn"},
        data="any",
        elsewhere=False,
    ),
    Identity(method="gigpo", options={"weight": 0.0, "std": "sample", **TRAJECTORY}, other="grpo"),
    Identity(
        method="gigpo",
        options={"weight": 0.0, "std": "sample", "cross_steps": False, **TRAJECTORY},
        other="grpo",
        data="any",
        elsewhere=False,
    ),
    Identity(method="graphgpo", options={"weight": 0.0, **TRAJECTORY}, other="grpo", data="any", elsewhere=False),
    Identity(method="graphhca", options={"weight": 0.0, **TRAJECTORY}, other="grpo", data="any", elsewhere=False),
    Identity(method="hcapo", options={"weight": 0.0}, other="grpo", data="any", elsewhere=False),
    Identity(
        method="trace_turn_credit",
        options={"weight": 0.0, "std": "sample", **TRAJECTORY},
        other="grpo",
        data="any",
        elsewhere=False,
    ),
    Identity(method="trace_budget", other="grpo", other_options={"average": "token"}, data="any", elsewhere=False),
    Identity(method="rloo", other="reinforce", other_options={"baseline": "others"}),
    Identity(
        method="dr_grpo",
        options={"constant": 1.0},
        other="grpo",
        other_options={"std": "none", "average": "sum"},
        data="any",
        elsewhere=False,
    ),
    Identity(method="dapo", options={"clip_high": 0.2, **TRAJECTORY}, other="grpo", data="any", elsewhere=False),
    Identity(
        method="dupo",
        other="dapo",
        other_options={"std": "population", "eps": 0.0},
        data="every group informative",
        elsewhere=False,
    ),
    Identity(method="transitions", options={"dual": None}, other="grpo", data="any", elsewhere=False),
    Identity(method="cispo", options=TRAJECTORY, other="grpo", data="any", fresh=True),
    Identity(
        method="reinforce_pp",
        other="grpo",
        other_options={"std": "population", "eps": 1e-8, "average": "token"},
        data="one group of one token",
    ),
    Identity(
        method="agentic_replay_po",
        other="grpo",
        other_options={"clip_high": 0.3, "average": "token"},
        data="no success to replay",
        elsewhere=False,
    ),
    Identity(method="sao", other="ppo", other_options=CRITIC, data="one token", fresh=True),
    Identity(method="bilevel_gae", other="ppo", other_options={"entropy_coefficient": 0.0}, data="one token"),
    Identity(method="compaction_gae", other="ppo", other_options=CRITIC, data="one token"),
    Identity(
        method="starpo_s",
        options={"share": 1.0, "clip_high": 0.2, "lam": 0.95, "entropy_coefficient": 0.01},
        other="ppo",
        data="every group informative",
        elsewhere=False,
    ),
    Identity(
        method="agentic_reinforced_po",
        options={"dual_clip": None, **TRAJECTORY},
        other="grpo",
        data="any",
        elsewhere=False,
    ),
    Identity(
        method="agentic_reinforced_po",
        options={"attribution": "hard", "dual_clip": None, **TRAJECTORY},
        other="grpo",
        data="no branches",
    ),
    Identity(method="aepo", options={"advantage_weight": 0.0, **TRAJECTORY}, other="grpo", data="any", fresh=True),
    Identity(
        method="at2po",
        options={"clip_low": 0.2, "clip_high": 0.2},
        other="grpo",
        other_options={"std": "population"},
        data="one token",
    ),
    Identity(
        method="tree_grpo",
        options={"kl": 0.0, "dual_clip": None, **TRAJECTORY},
        other="grpo",
        data="no branches",
    ),
    Identity(method="rft", other="sft", data="every attempt succeeds"),
    Identity(
        method="actor_critic", options={"entropy_coefficient": 0.0}, other="turn_ppo", data="one token", fresh=True
    ),
]


def both(identity: Identity, data: str, *, fresh: bool) -> tuple[Doubles, Doubles]:
    one, other = (
        trial_gradient(build_algorithm(name, options), seed=4, shape=SHAPES[data], fresh=fresh)
        for name, options in (
            (identity.method, identity.options),
            (identity.other, identity.other_options),
        )
    )
    return one, other


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda item: f"{item.method} = {item.other}, {item.data}")
def test_a_method_is_another_one_where_its_own_part_has_nothing_to_do(identity: Identity) -> None:
    one, other = both(identity, identity.data, fresh=identity.fresh)

    assert np.linalg.norm(other) > 1e-3
    assert np.linalg.norm(one - other) <= 1e-6 * np.linalg.norm(other)
    if identity.elsewhere:
        one, other = both(identity, "any", fresh=False)
        assert np.linalg.norm(one - other) > 1e-3 * np.linalg.norm(other)


def test_the_page_prints_the_table() -> None:
    rows = {line for line in PAGE.read_text().splitlines() if line.startswith("| `")}
    assert {identity.row for identity in IDENTITIES} <= rows
