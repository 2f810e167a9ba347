"""Whether a method can learn from the costs that an experiment charges, and how they are told."""

from collections.abc import Mapping
from math import ulp

from kifu.algorithms import Algorithm
from kifu.errors import ExperimentError
from kifu.training.experiment.credit_layers import ConstraintCost, CreditLayer, RewardCost
from kifu.training.experiment.discount import reads_returns

_NO_COST_AS_REWARD = frozenset({"rft", "mt_grpo", "maxrl"})
"""Methods with rollouts whose credit reads the verdict and no return, or has no meaning for a negative one."""


_LEAST: Mapping[str, float] = {"tokens": 1.0, "turns": 1.0, "calls": 0.0, "seconds": ulp(0.0)}
"""What every attempt costs at least."""


def check_costs(credit: CreditLayer, algorithm: Algorithm) -> None:
    """Refuse a cost as a reward or a constraint where the method would not notice it, or no attempt could keep it.

    Raises:
        ExperimentError: naming the field.
    """
    method, plan = credit.algorithm, algorithm.plan
    for name, use in credit.costs.items():
        if isinstance(use, RewardCost) and (not reads_returns(plan) or method in _NO_COST_AS_REWARD):
            raise ExperimentError(
                f'credit.costs.{name}: where = "reward", and `{method}` has no use for less than a verdict pays; '
                'use "constraint", "report", or a method that credits with returns'
            )
        if isinstance(use, ConstraintCost) and plan.demonstrations:
            raise ExperimentError(
                f'credit.costs.{name}: where = "constraint", and `{method}` imitates whatever is shown; use "report"'
            )
        if isinstance(use, ConstraintCost) and use.limit < _LEAST[name]:
            raise ExperimentError(
                f"credit.costs.{name}.limit: found {use.limit:g}, and every attempt costs more: all would count as "
                'failed and nothing be learned; raise it, or use "reward"'
            )


def told_costs(credit: CreditLayer) -> tuple[str, ...]:
    """One line a cost that the experiment names: where it enters."""
    found = []
    for name, use in credit.costs.items():
        match use:
            case RewardCost():
                found.append(f"{name}: reward, {use.weight:g} less for each")
            case ConstraintCost():
                more = f"more than {use.limit:g}" if use.limit else "any at all in"
                found.append(f"{name}: constraint, {more} an episode is a failure")
            case _:
                found.append(f"{name}: report, nothing is trained on it")
    return tuple(found)
