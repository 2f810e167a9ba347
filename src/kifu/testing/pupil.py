"""A tabular policy and critic under a real optimizer, for checks of what a step moves and a checkpoint holds."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from kifu.batching import Row, pack_rows
from kifu.objectives import Objective, Optimizer
from kifu.policy import AdamW
from kifu.testing.trials import Tabular, terms_of


class Pupil:
    """Two trained tables with moments and decay.

    Args:
        policy: what the tables begin with.
    """

    def __init__(self, policy: Tabular) -> None:
        self.tables = {
            "logits": torch.nn.Parameter(torch.tensor(policy.logits_VV)),
            "values": torch.nn.Parameter(torch.tensor(policy.values_V)),
        }
        self._optimizer = Optimizer(self.tables, AdamW(learning_rate=0.1, weight_decay=0.1))

    def step(self, rows: Sequence[Row], objective: Objective) -> bool:
        """Take the loss over rows and one optimizer step; whether it was applied."""
        for batch in pack_rows(rows, max_nodes=1 << 20, layout="rows"):
            terms = terms_of(batch, self.tables["logits"], self.tables["values"], needs_entropy=objective.needs_entropy)
            loss = objective(terms)
            if loss.total.requires_grad:
                loss.total.backward()
        return self._optimizer.step().applied

    def forget_values(self) -> None:
        """A critic that says 0 of everything; moments stay."""
        with torch.no_grad():
            self.tables["values"].zero_()

    def saved(self) -> dict[str, Any]:
        """Weights and the optimizer's state, as a checkpoint holds them."""
        weights = {name: table.detach().numpy().copy() for name, table in self.tables.items()}
        return {"weights": weights, "optimizer": deepcopy(self._optimizer.state())}

    @classmethod
    def loaded(cls, saved: dict[str, Any]) -> "Pupil":
        """Another one that goes on from what was saved."""
        weights = saved["weights"]
        found = cls(Tabular(logits_VV=weights["logits"], values_V=weights["values"]))
        found._optimizer.load_state(saved["optimizer"])
        return found

    def matches(self, saved: dict[str, Any]) -> bool:
        """Whether weights, moments and step count are, bit for bit, those that were saved."""
        now = self.saved()
        return str(now["optimizer"]) == str(saved["optimizer"]) and all(
            bool((now["weights"][name] == table).all()) for name, table in saved["weights"].items()
        )
