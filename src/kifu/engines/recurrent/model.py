"""The actor-critic: token embedding, memory, a policy head over the vocabulary and a value head.

Axes: ``B`` rows, ``H`` width of embedding and state, ``V`` vocabulary, ``M`` token positions of a batch.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kifu.engines.recurrent.options import Options

_POLICY_SCALE = 0.01
"""Of the policy head's initial weights: the first policy is close to uniform."""


class ActorCritic(nn.Module):
    """A GRU (Cho et al., 2014) over the tokens of a context, or the same heads on the last token alone.

    Args:
        options: width, kind, dtype.
        vocabulary: number of token ids.
        seed: of the initial weights; the global generator is neither read nor moved.
    """

    def __init__(self, options: Options, *, vocabulary: int, seed: int) -> None:
        super().__init__()
        hidden = options.hidden
        # Built without memory and drawn below: torch's own initialization would move the global generator.
        dtype, device = options.torch_dtype, "meta"
        self.has_memory = options.kind == "gru"
        self.hidden = hidden
        self.embedding = nn.Parameter(torch.empty(vocabulary, hidden, dtype=dtype, device=device))
        if self.has_memory:
            self.gru = nn.GRU(hidden, hidden, dtype=dtype, device=device)
        else:
            self.layer = nn.Linear(hidden, hidden, dtype=dtype, device=device)
        self.policy = nn.Linear(hidden, vocabulary, dtype=dtype, device=device)
        self.value = nn.Linear(hidden, 1, dtype=dtype, device=device)
        self.to_empty(device="cpu")
        self._initialize(seed)

    def _initialize(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(self.hidden)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                # Drawn in float64 so that both dtypes start from the same numbers.
                drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
                scale = 1.0 if name == "embedding" else bound
                if name.startswith("policy"):
                    scale *= _POLICY_SCALE
                parameter.copy_(drawn * scale)

    def step(self, state_BH: Tensor, token_B: Tensor) -> Tensor:
        """State after one more token."""
        taken_BH = self.embedding[token_B]
        if not self.has_memory:
            state: Tensor = torch.tanh(self.layer(taken_BH))
            return state
        return torch.gru_cell(taken_BH, state_BH, *self.gru.all_weights[0])

    def states(self, token_M: Tensor, batch_sizes_T: Tensor) -> Tensor:
        """``[M, H]`` state after every token of a batch of whole sequences, all starting from the zero state.

        Args:
            token_M: time-major and ragged, as in `PackedSequence`: first the first tokens of all sequences, longest
                sequence first, then the second tokens of those that have one, and so on. There is no padding.
            batch_sizes_T: number of sequences that have a token at each time.
        """
        taken_MH = self.embedding[token_M]
        if not self.has_memory:
            state: Tensor = torch.tanh(self.layer(taken_MH))
            return state
        packed, _ = self.gru(PackedSequence(taken_MH, batch_sizes_T))
        found: Tensor = packed.data
        return found

    def logits(self, state_BH: Tensor) -> Tensor:
        """``[B, V]`` unnormalized log-probabilities of the next token."""
        found: Tensor = self.policy(state_BH)
        return found

    def values(self, state_BH: Tensor) -> Tensor:
        """``[B]`` value of the contexts."""
        found: Tensor = self.value(state_BH).squeeze(-1)
        return found
