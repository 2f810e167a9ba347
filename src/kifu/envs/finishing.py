"""Whether partial credit can be worth more than finishing: the dearest unfinished play of a finite world, exactly."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kifu.envs.finite import FiniteModel, Node
from kifu.envs.optimal import Payment, pay_components
from kifu.records import StopReason

_STILL = 1e-12
"""What a sum may gain without having grown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialCredit:
    """Totals of components and the verdict's reward, undiscounted, over every play there is, lucky ones included."""

    unfinished: float
    """The most of a play that does not end in success, wherever it is cut; infinite where a loop pays."""
    finished: float
    """The least of one that does; infinite where none does."""

    @property
    def is_outbid(self) -> bool:
        """Whether some unfinished play is paid as much as some finished one."""
        return self.unfinished >= self.finished - _STILL


def partial_credit(model: FiniteModel, weights: Mapping[str, float]) -> PartialCredit:
    """Compare what unfinished and finished plays can be paid with these weights of the components.

    Where nothing is outbid, no policy whatever it knows is paid more for not finishing than for finishing.

    Args:
        model: from `kifu.envs.finite.explore`.
        weights: of components; one that has none is not paid.
    """
    pay = pay_components(weights)
    unfinished = _most(model, pay, lambda node: -math.inf if _is_finished(node) else node.reward)
    cost = pay_components({name: -weight for name, weight in weights.items()})
    finished = -_most(model, cost, lambda node: -node.reward if _is_finished(node) else -math.inf)
    return PartialCredit(unfinished=unfinished, finished=finished)


def _is_finished(node: Node) -> bool:
    return node.stop is StopReason.SUCCESS


def _most(model: FiniteModel, pay: Payment, at_end: Callable[[Node], float]) -> float:
    """The largest total of a play from any start, by relaxation.

    What still grows after as many rounds as there are states grows along a loop.
    """
    values = [at_end(node) for node in model.nodes]
    for _ in model.nodes:
        is_still = True
        for at in reversed(range(len(values))):
            ways = [pay(model, at, place) + values[after] for place, after in enumerate(model.successors[at])]
            best = max([values[at], *ways])
            is_still, values[at] = is_still and best <= values[at] + _STILL, best
        if is_still:
            return max(values[start] for start in model.start)
    return math.inf
