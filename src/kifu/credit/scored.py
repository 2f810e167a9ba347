"""What is asked of a model about the turns of a finished rollout before it is credited.

Each is the mean log-probability of some tokens in a request of its own, over the whole vocabulary at temperature 1. The
policy never reads what stands in such a request.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kifu.errors import ArgumentError

ScoringWeights: TypeAlias = Literal["present", "initial"]
"""``present``: those that are published when the rollout ends; ``initial``: those the method began with, frozen."""

ANSWER = "{answer}"
FINAL = "{final}"
OUTCOME = "{outcome}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoScores:
    """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldScores:
    """How likely the gold answer is before every turn, as the next thing the assistant writes."""

    template: str = ANSWER
    """What the assistant would write, with the answer at ``{answer}``. Only the answer's own tokens are scored, so that
    what stands behind it plays no part."""
    weights: ScoringWeights = "present"
    after: bool = False
    """Whether it is scored after the last turn as well."""

    def __post_init__(self) -> None:
        if self.template.count(ANSWER) != 1:
            raise ArgumentError(f"the template of a gold answer holds {ANSWER} once, found {self.template!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HindsightScores:
    """How likely every turn is once its reader knows how the episode ended."""

    template: str = f"{FINAL}\n{OUTCOME}"
    """Stands at the end of what the policy was shown before the turn. ``{final}`` is the last answer of the world (the
    last message of the policy where there is none), ``{outcome}`` is success, failure or unknown."""

    def __post_init__(self) -> None:
        if FINAL not in self.template and OUTCOME not in self.template:
            raise ArgumentError(f"the template of a hindsight holds {FINAL} or {OUTCOME}, found {self.template!r}")

    def text(self, *, final: str, outcome: str) -> str:
        """The template filled in."""
        return self.template.replace(OUTCOME, outcome).replace(FINAL, final)


ScoredFacts: TypeAlias = NoScores | GoldScores | HindsightScores
