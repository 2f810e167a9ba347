"""A small reward model over token sequences: fitted to preferences, or to soft labels of turns.

Axes: ``P`` pairs, ``B`` sequences, ``H`` width, ``V`` token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid
from torch.nn.utils.rnn import pack_sequence

from kifu.errors import ArgumentError
from kifu.records import Ints


def bradley_terry_loss(*, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """``L = - mean_p log sigma(r(y+_p) - r(y-_p))`` (Bradley and Terry, 1952; as in Ouyang et al., 2022, eq. 1)."""
    return -logsigmoid(chosen_P - rejected_P).mean()


def soft_label_loss(*, score_B: Tensor, label_B: Tensor) -> Tensor:
    """Binary cross-entropy of ``sigma(score)`` against labels in [0, 1], mean (AgentPRM, Choudhury, 2025)."""
    return binary_cross_entropy_with_logits(score_B, label_B)


class SequenceScorer(nn.Module):
    """Embedding, GRU, and a linear score of the state after the last token.

    Args:
        vocabulary: ids that were seen when it was made; all others share one embedding.
        hidden: H.
        seed: of the initial weights; the global generator is neither read nor moved.
    """

    def __init__(self, *, vocabulary: int, hidden: int, seed: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        # Built without memory and drawn below: torch's own initialization would move the global generator.
        self.embedding = nn.Parameter(torch.empty(vocabulary + 1, hidden, device="meta"))
        self.gru = nn.GRU(hidden, hidden, device="meta")
        self.head = nn.Linear(hidden, 1, device="meta")
        self.to_empty(device="cpu")
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                drawn = torch.rand(parameter.shape, generator=generator) * 2 - 1
                parameter.copy_(drawn * (1.0 if name == "embedding" else 1 / sqrt(hidden)))

    def forward(self, sequences: Sequence[Ints]) -> Tensor:
        """``[B]`` scores of whole sequences, in any order and of any length from 1 on."""
        rows = [torch.from_numpy(np.minimum(ids, self.vocabulary).astype(np.int64)) for ids in sequences]
        packed = pack_sequence([self.embedding[row] for row in rows], enforce_sorted=False)
        _, last_1BH = self.gru(packed)
        score_B: Tensor = self.head(last_1BH[0])[:, 0]
        return score_B


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """How a scorer is fitted."""

    steps: int = 200
    batch: int = 32
    """Pairs, or labelled sequences, per step."""
    learning_rate: float = 1e-2
    seed: int = 0
    """Of the batches."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or not 0.0 < self.learning_rate < float("inf"):
            raise ArgumentError(
                f"fitting needs steps and batch >= 1 and a finite rate > 0, found {self.steps}, {self.batch} and "
                f"{self.learning_rate}"
            )


def fit_preferences(
    scorer: SequenceScorer, pairs: Sequence[tuple[Ints, Ints]], *, fitting: Fitting
) -> npt.NDArray[np.float64]:
    """Fit a scorer to pairs (preferred, other); the loss of every step.

    Raises:
        ArgumentError: no pairs.
    """

    def loss(chosen: Sequence[int]) -> Tensor:
        scores = scorer([pairs[at][0] for at in chosen] + [pairs[at][1] for at in chosen])
        return bradley_terry_loss(chosen_P=scores[: len(chosen)], rejected_P=scores[len(chosen) :])

    return _fit(scorer, len(pairs), loss=loss, fitting=fitting)


def fit_labels(
    scorer: SequenceScorer,
    sequences: Sequence[Ints],
    labels_B: npt.NDArray[np.float64],
    *,
    fitting: Fitting,
) -> npt.NDArray[np.float64]:
    """Fit a scorer to soft labels of sequences, each up to the end of a turn; the loss of every step.

    Raises:
        ArgumentError: no sequences, or a label outside [0, 1].
    """
    if len(sequences) != labels_B.size:
        raise ArgumentError(f"{len(sequences)} sequences with {labels_B.size} labels")
    if labels_B.size and not bool(((labels_B >= 0) & (labels_B <= 1)).all()):
        raise ArgumentError(f"labels must lie in [0, 1], found {labels_B.min()} to {labels_B.max()}")

    def loss(chosen: Sequence[int]) -> Tensor:
        label_B = torch.tensor(labels_B[list(chosen)], dtype=torch.float32)
        return soft_label_loss(score_B=scorer([sequences[at] for at in chosen]), label_B=label_B)

    return _fit(scorer, len(sequences), loss=loss, fitting=fitting)


def preference_accuracy(scorer: SequenceScorer, pairs: Sequence[tuple[Ints, Ints]]) -> float | None:
    """Share of pairs whose preferred side scores higher; None without pairs."""
    if not pairs:
        return None
    with torch.no_grad():
        chosen_P, rejected_P = scorer([one for one, _ in pairs]), scorer([two for _, two in pairs])
    return float((chosen_P > rejected_P).double().mean())


class _Loss(Protocol):
    def __call__(self, chosen: Sequence[int]) -> Tensor: ...


def _fit(scorer: SequenceScorer, count: int, *, loss: _Loss, fitting: Fitting) -> npt.NDArray[np.float64]:
    if not count:
        raise ArgumentError("there is nothing to fit: no pair and no label. Give records whose rewards differ.")
    optimizer = torch.optim.Adam(scorer.parameters(), lr=fitting.learning_rate, foreach=False)
    random, found = np.random.default_rng(fitting.seed), []
    for _ in range(fitting.steps):
        chosen = random.choice(count, size=min(fitting.batch, count), replace=False)
        optimizer.zero_grad()
        total = loss(chosen.tolist())
        total.backward()
        optimizer.step()
        found.append(float(total.detach()))
    return np.array(found, dtype=np.float64)
