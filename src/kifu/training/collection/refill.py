"""Sampling on until a step has as many groups with a signal as it was to have prompts."""

from dataclasses import dataclass

from kifu.algorithms import Algorithm
from kifu.credit.reading import RewardRules
from kifu.records import Group
from kifu.training.experiment.stages import Stage
from kifu.training.update.assemble import usable_members


@dataclass(frozen=True, slots=True, kw_only=True)
class Refill:
    """How groups without a signal are made up for: by other tasks, as many as are missing, round after round.

    A round is decided when every rollout of the rounds before is accepted, from the records alone, so that a run that
    goes on from its record samples the same tasks.
    """

    algorithm: Algorithm
    """Says which groups carry a signal."""
    rules: RewardRules
    rounds: int
    """At most, the first one included."""
    stride: int
    """Places in the training order that the first rounds of all steps take; no later round takes one of these."""

    def missing(self, groups: list[Group], *, wanted: int) -> int:
        """How many groups with a signal a step still lacks."""
        return max(wanted - sum(self.has_signal(group) for group in groups), 0)

    def has_signal(self, group: Group) -> bool:
        """Whether the method credits a group, by the members that may be trained."""
        members = usable_members(group, rules=self.rules, oldest=-1, buckets={}, why={})
        episodes = [episode for _, episode in members]
        return bool(episodes) and self.algorithm.credit(episodes, self.rules) is not None


def refill_of(stage: Stage) -> Refill | None:
    """The rule of a stage; None where every step trains on the groups it was given."""
    rounds = stage.algorithm.plan.refill
    if rounds == 1:
        return None
    stride = stage.steps * stage.update.prompts_per_step
    return Refill(algorithm=stage.algorithm, rules=stage.rules, rounds=rounds, stride=stride)
